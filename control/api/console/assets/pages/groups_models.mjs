// The part of a group's form that edits slugs and their limits: one line a slug, whose fields are made when it is opened, as a few are
// at first.

import { h, newId } from "../dom.mjs";
import { field, select } from "../form.mjs";
import { count } from "../format.mjs";
import { isConcurrent, KINDS, limitText, MIN_THRESHOLD, nounOf, RATE_UNITS, TYPES, USAGE_TYPES, USAGE_UNITS } from "../limit_kinds.mjs";
import { nothing, remark } from "../notice.mjs";
import { nameOf, nearest, ownLimit } from "./groups_rules.mjs";

const DEFAULT_RATE_UNIT = "MINUTE";
const MAX_THRESHOLD = Number.MAX_SAFE_INTEGER;
const MOST_SHOWN = 200;
const OPEN_AT_FIRST = 3;

/**
 * `models`: as the API shows them; `slugs`: those to choose from; `path()`: `{enforcement, ancestors}`. Answers
 * `{element, value()}`; `value` is null while something is wrong.
 */
export function modelsEditor(models, slugs, path) {
  const entries = models.map((entry) => newEntry(entry, path));
  const list = h("div");
  const said = h("div");
  const known = newId();
  const slug = h("input", { list: known, autocomplete: "off", spellcheck: "false", onkeydown: (event) => event.key === "Enter" && (event.preventDefault(), add()) });
  const filter = h("input", { type: "search", autocomplete: "off", oninput: () => show() });
  const filterField = field("Only slugs with", filter);

  function show() {
    const matching = entries.filter((entry) => entry.slug.includes(filter.value.trim()));
    filterField.hidden = entries.length < 10;
    const rows = matching.slice(0, MOST_SHOWN).map((entry) => entry.row(() => (entries.splice(entries.indexOf(entry), 1), show(), slug.focus())));
    const rest = matching.length - rows.length;
    list.replaceChildren(...(rows.length ? rows : [nothing("No slugs: its keys may call nothing.")]), ...(rest > 0 ? [h("p.soft", {}, `And ${count(rest)} more: filter for them.`)] : []));
  }

  function add() {
    const wanted = slug.value.trim();
    said.replaceChildren();
    if (!/^[^/]+\/[^/]+$/.test(wanted)) return said.replaceChildren(remark("bad", "A slug is prefix/name."));
    if (entries.some((entry) => entry.slug === wanted)) return said.replaceChildren(remark("bad", "This slug is listed already."));
    const made = newEntry({ slug: wanted, rate_limits: [], usage_limits: [] }, path);
    entries.unshift(made);
    slug.value = "";
    show();
    made.open().focus();
  }

  show();
  if (entries.length <= OPEN_AT_FIRST) for (const entry of entries) entry.open();
  const adder = h("div.toolbar", {}, field("Add a slug", slug), h("button", { type: "button", onclick: add }, "Add"), filterField);
  const options = h("datalist", { id: known }, slugs.map((one) => h("option", { value: one })));
  const element = h("div", {}, adder, options, said, list);
  return {
    element,
    value() {
      const made = entries.map((entry) => entry.value());
      return made.includes(null) ? null : made;
    },
  };
}

/** A slug of the form. Its fields exist only once it was opened: a group may have a thousand. */
function newEntry(original, path) {
  const { slug } = original;
  let fields = null;
  const body = h("div.limits");
  const summary = h("span.soft", {}, limitsText(original));
  const details = h("details", { ontoggle: () => build() }, h("summary", {}, h("code", {}, slug), " ", summary), body);

  function build() {
    if (fields) return;
    fields = limitFields(original, path);
    body.append(...fields.elements);
  }

  return {
    slug,
    row(remove) {
      return h("div.entry", {}, details, h("p.actions", {}, h("button.plain.danger", { type: "button", "aria-label": `Remove ${slug}`, onclick: remove }, "Remove")));
    },
    /** Answers the first field. */
    open() {
      build();
      details.open = true;
      return body.querySelector("input");
    },
    value() {
      const value = fields ? fields.value() : original;
      if (value === null) details.open = true;
      else summary.textContent = limitsText(value);
      return value;
    },
  };
}

function limitFields(original, path) {
  const group = { models: [original] };
  const { slug } = original;
  const rates = rateFields(original.rate_limits, slug);
  const usages = USAGE_UNITS.flatMap((unit) => USAGE_TYPES.map((type) => ({ type, unit: { value: unit }, input: number(ownLimit(group, { slug, type, unit })) })));
  const elements = [
    ...rates.elements,
    ...usages.map((one) => field(`${heading(one.type)} a ${one.unit.value.toLowerCase()}`, one.input)),
    h("p.hint", {}, fromAbove(slug, path())),
  ];
  return {
    elements,
    value() {
      const [rate_limits, usage_limits] = [rates.value(), limitsOf(usages)];
      return rate_limits === null || usage_limits === null ? null : { slug, rate_limits, usage_limits };
    },
  };
}

/** A number and a unit for each type of rate limit: `{elements, value()}`; `value` is null if one is wrong. `what` is limited. */
export function rateFields(limits, what) {
  const fields = Object.keys(TYPES).map((type) => {
    const present = limits.find((one) => one.type === type);
    const unit = present?.unit ?? DEFAULT_RATE_UNIT;
    const input = number(present?.threshold);
    if (isConcurrent(type)) return { type, unit: { value: unit }, input };
    const choices = RATE_UNITS.map((one) => [one, one.toLowerCase()]);
    const chosen = select("", choices, unit, { "aria-label": `${heading(type)} of ${what}: a ${choices.map(([, name]) => name).join(" or a ")}` });
    return { type, unit: chosen, input, choice: h("p", {}, "a ", chosen) };
  });
  return { elements: fields.map((one) => h("div", {}, field(heading(one.type), one.input), one.choice)), value: () => limitsOf(fields) };
}

/** The limits that fields say; null if one is wrong. */
function limitsOf(fields) {
  const made = fields.filter(({ input }) => input.value !== "" || !input.validity.valid).map((one) => ({ type: one.type, unit: one.unit.value, threshold: wholeNumber(one.input) }));
  return made.some((one) => one.threshold === null) ? null : made;
}

/** "Requests" */
const heading = (type) => nounOf(type)[0].toUpperCase() + nounOf(type).slice(1);

const number = (value) => h("input", { type: "number", min: MIN_THRESHOLD, max: MAX_THRESHOLD, step: 1, inputmode: "numeric", placeholder: "none", value });

function wholeNumber(input) {
  const value = Number(input.value);
  const isRight = input.validity.valid && Number.isSafeInteger(value) && value >= MIN_THRESHOLD;
  if (isRight) input.removeAttribute("aria-invalid");
  else input.setAttribute("aria-invalid", "true");
  return isRight ? value : null;
}

/** What the groups above say of the slug. */
function fromAbove(slug, { enforcement, ancestors }) {
  const said = KINDS.flatMap((kind) => {
    const above = enforcement === "CASCADING" ? ancestors.map((group) => ({ group, threshold: ownLimit(group, { slug, ...kind }) })) : [nearest(ancestors, { slug, ...kind })];
    return above.filter((one) => one && one.threshold !== null).map((one) => `${limitText({ ...kind, threshold: one.threshold })} (${nameOf(one.group)})`);
  });
  if (!said.length) return "Empty means no limit.";
  return enforcement === "CASCADING" ? `At most, and counted together with others below: ${said.join(", ")}.` : `Empty inherits: ${said.join(", ")}.`;
}

function limitsText({ rate_limits, usage_limits }) {
  const limits = [...rate_limits, ...usage_limits].map(limitText);
  return limits.join(", ") || "no limits of its own";
}
