// The form of a price: each member, with the default that it has when it is empty.

import { Problem } from "../api.mjs";
import { h } from "../dom.mjs";
import { field, form } from "../form.mjs";

/** The present UTC date. */
export const TODAY = new Date().toISOString().slice(0, 10);

// Name, label, what holds when it is empty: the member that it follows, or a value.
const MAIN = [
  ["input_per_million", "Input, per million tokens", null, "Input that is not cached."],
  ["output_per_million", "Output, per million tokens", null, ""],
  ["cached_input_per_million", "Cached input, per million tokens", "input_per_million", "Empty: as input."],
  ["per_call", "Per call", "0", "Empty: 0."],
];
const FURTHER = [
  ["cache_write_per_million", "Cache writes, per million tokens", "input_per_million", "Empty: as input."],
  ["cache_write_1h_per_million", "Cache writes for an hour", "cache_write_per_million", "Empty: as other cache writes."],
  ["audio_input_per_million", "Sound in the input", "input_per_million", "Empty: as input."],
  ["image_input_per_million", "Pictures in the input", "input_per_million", "Empty: as input."],
  ["audio_output_per_million", "Sound in the output", "output_per_million", "Empty: as output."],
  ["image_output_per_million", "Pictures in the output", "output_per_million", "Empty: as output."],
  ["per_server_tool_call", "Per call of a tool that the vendor runs", "0", "Empty: 0."],
];
const LONG = [
  ["input_per_million", "Input, above the bound"],
  ["cached_input_per_million", "Cached input, above the bound"],
  ["cache_write_per_million", "Cache writes, above the bound"],
  ["output_per_million", "Output, above the bound"],
];
const COUNTS = [
  ["max_input_tokens", "Most input tokens of a call"],
  ["max_output_tokens", "Most output tokens of a call"],
];

/** The form; `store(body)` sends it. `price`: what it holds at first. A price that exists keeps its slug and date. */
export function priceForm(price, store, { isNew = false, cancel = null } = {}) {
  const text = (name, value, attributes = {}) => h("input", { name, value: value ?? "", autocomplete: "off", spellcheck: "false", ...attributes });
  const amount = ([name, label, follows, hint]) => [name, text(name, isDefault(price, name, follows) ? "" : price[name], { inputmode: "decimal", required: follows === null }), label, hint];
  const controls = {
    slug: text("slug", price.slug, { readonly: !isNew, maxlength: 257, placeholder: "acme/chat" }),
    valid_from: text("valid_from", price.valid_from, { type: isNew ? "date" : "text", readonly: !isNew }),
    currency: text("currency", price.currency, { maxlength: 3, placeholder: "EUR" }),
  };
  const amounts = MAIN.map(amount);
  const further = FURTHER.map(amount);
  const long = LONG.map(([name, label]) => [name, text(`long_context.${name}`, price.long_context?.[name], { inputmode: "decimal" }), label]);
  const above = text("long_context.above_input_tokens", price.long_context?.above_input_tokens, { inputmode: "numeric" });
  const tiers = h("textarea", { name: "service_tiers", spellcheck: "false", rows: 3 }, tiersText(price.service_tiers));
  const counts = COUNTS.map(([name, label]) => [name, text(name, price[name], { inputmode: "numeric" }), label]);
  const asFields = (list) => list.map(([, control, label, hint]) => field(label, control, hint || null));

  function body() {
    const bare = Object.fromEntries(Object.entries(controls).map(([name, control]) => [name, control.value.trim()]));
    const priced = Object.fromEntries([...amounts, ...further].map(([name, control]) => [name, control.value.trim() || null]));
    const counted = Object.fromEntries(counts.map(([name, control]) => [name, wholeNumber(name, control.value)]));
    return { ...bare, currency: bare.currency.toUpperCase(), ...onlySet(priced, ["input_per_million", "output_per_million"]), ...counted, long_context: longContext(above, long), service_tiers: tiersOf(tiers.value) };
  }

  return form(
    "Save the price",
    [
      grid(
        field("Slug", controls.slug),
        field("Valid from (UTC date)", controls.valid_from, isNew ? "Until the slug's next price. A date in the past changes what reports and statements say of that time." : "A change holds for all calls since this date, reported ones too."),
        field("Currency", controls.currency, "Three capital letters, as EUR."),
      ),
      grid(asFields(amounts)),
      h(
        "details",
        {},
        h("summary", {}, "Cache writes, sound, pictures, tools, long context, service tiers, bounds"),
        grid(asFields(further)),
        h("h3", {}, "Long context"),
        grid(field("Above so many input tokens", above, "Then all tokens of the call have these prices. Empty: none."), asFields(long)),
        h("h3", {}, "Service tiers"),
        field("Tier and multiplier, one a line", tiers, "As the provider reports the tier, such as: priority 1.25. What tokens cost is multiplied by it."),
        h("h3", {}, "Bounds of the model"),
        grid(asFields(counts)),
      ),
    ],
    () => store(body()),
    { cancel, needs: "prices" },
  );
}

const grid = (...fields) => h("div.limits", {}, fields);

/** Whether the member has its default, so that it follows what it follows. */
function isDefault(price, name, follows) {
  if (follows === null || price[name] === undefined) return false;
  return price[name] === price[follows] || Number(price[name]) === Number(follows);
}

/** Without members that are empty and have a default; a needed one stays, so that the API names it. */
const onlySet = (members, needed) => Object.fromEntries(Object.entries(members).filter(([name, value]) => value !== null || needed.includes(name)).map(([name, value]) => [name, value ?? ""]));

function longContext(above, long) {
  const bound = wholeNumber(above.name, above.value);
  const members = Object.fromEntries(long.map(([name, control]) => [name, control.value.trim()]).filter(([, value]) => value !== ""));
  if (bound === null && Object.keys(members).length === 0) return null;
  if (bound === null) throw fault(above.name, "is needed with prices of long context");
  return { above_input_tokens: bound, ...members };
}

function wholeNumber(name, value) {
  const typed = value.trim();
  if (typed === "") return null;
  if (!/^[0-9]{1,10}$/.test(typed)) throw fault(name, "must be a whole number");
  return Number(typed);
}

const tiersText = (tiers) => Object.entries(tiers ?? {}).map(([tier, { multiplier }]) => `${tier} ${multiplier}`).join("\n");

function tiersOf(value) {
  const lines = value.split("\n").map((line) => line.trim()).filter(Boolean);
  if (lines.length === 0) return null;
  return Object.fromEntries(lines.map((line) => {
    const [, tier, multiplier] = /^(.*\S)\s+(\S+)$/.exec(line) ?? [];
    if (tier === undefined) throw fault("service_tiers", `"${line}" must be a tier and its multiplier`);
    return [tier, { multiplier }];
  }));
}

const fault = (name, message) => new Problem(400, "INVALID_REQUEST", `${name} ${message}`, [{ field: name, message }]);
