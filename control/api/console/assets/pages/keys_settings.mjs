// What can be set on a key of a group: its fields, what they say in a line, and the key's state in words.

import { h } from "../dom.mjs";
import { field } from "../form.mjs";
import { ago } from "../format.mjs";
import { limitText } from "../limit_kinds.mjs";
import { typed, utc } from "../time_window.mjs";
import { rateFields } from "./groups_models.mjs";
import { spendEditor, spendText } from "./groups_spend.mjs";

const SOON_S = 7 * 86_400;
const MOST_NAMED = 2;
const NOTHING = { expires_at: null, allowed_ips: null, slugs: null, rate_limits: [], spend_limits: [] };

/** The fields, with what is set on `key`, or for a new one: `{elements, value()}`. `value` is null if a limit cannot be read. */
export function settingsFields(key = NOTHING) {
  const end = h("input", { type: "datetime-local", step: 1, name: "expires_at", value: typed(key.expires_at) });
  const addresses = lines("allowed_ips", key.allowed_ips);
  const slugs = lines("slugs", key.slugs);
  const rates = rateFields(key.rate_limits, "all slugs of the key");
  const spend = spendEditor(key.spend_limits, "What calls with this key may cost");
  const elements = [
    field("Expires at (UTC, optional)", end, "Calls are refused from then on."),
    field("Addresses (optional)", addresses, "Addresses or networks that may use the key, one a line, such as 203.0.113.0/24. Empty: all."),
    field("Slugs (optional)", slugs, "Slugs of the group that the key may call, one a line. Empty: all of the group's."),
    h("p", {}, "Limits of the key's own, over all its slugs, beside the group's:"),
    h("div.limits", {}, rates.elements),
    spend.element,
  ];

  function value() {
    const [rate_limits, spend_limits] = [rates.value(), spend.value()]; // both mark what is wrong
    if (rate_limits === null || spend_limits === null) return null;
    const expires_at = end.value === typed(key.expires_at) ? key.expires_at : utc(end.value); // the field has whole seconds
    return { expires_at, allowed_ips: listed(addresses), slugs: listed(slugs), rate_limits, spend_limits };
  }

  return { elements, value };
}

const lines = (name, items) => h("textarea", { name, rows: 3, spellcheck: "false", autocomplete: "off" }, (items ?? []).join("\n"));

/** The words of a field; null if there are none. */
function listed({ value }) {
  const words = value.split(/[\s,]+/).filter(Boolean);
  return words.length ? words : null;
}

/** The members of `after` that differ from the key. */
export function differences(key, after) {
  return Object.fromEntries(Object.entries(after).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(key[name])));
}

/** What is set on a key besides its end, in short texts. */
export function restrictions({ allowed_ips: addresses, slugs, rate_limits: rates, spend_limits: spend }) {
  return [...(addresses ? [`from ${named(addresses)}`] : []), ...(slugs ? [named(slugs)] : []), ...rates.map(limitText), ...spend.map(spendText)];
}

const named = (items) => items.slice(0, MOST_NAMED).join(", ") + (items.length > MOST_NAMED ? ` and ${items.length - MOST_NAMED} more` : "");

/** The state of a key, in words and colour. */
export function stateBadge({ state, expires_at: end, replaced_by: successor }) {
  if (state === "DISABLED") return h("span.badge.bad", {}, "disabled");
  if (state === "EXPIRED") return [h("span.badge", {}, "expired"), " ", ago(end)];
  if (state === "REPLACED") return [h("span.badge.warn", {}, "rotated"), " ends ", ago(end), " → ", h("code", {}, successor)];
  if (!end) return h("span.badge.good", {}, "active");
  const isSoon = new Date(end) - Date.now() < SOON_S * 1000;
  return [h(isSoon ? "span.badge.warn" : "span.badge.good", {}, "active"), " expires ", ago(end)];
}
