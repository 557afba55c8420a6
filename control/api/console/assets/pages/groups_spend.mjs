// Spend limits of a group: how much of each is spent, the fields that change them, and what a change means.

import { read, route } from "../api.mjs";
import { usageBar } from "../chart.mjs";
import { h } from "../dom.mjs";
import { field } from "../form.mjs";
import { time } from "../format.mjs";
import { USAGE_UNITS } from "../limit_kinds.mjs";
import { keepFresh } from "../live.mjs";
import { table } from "../table.mjs";
import { groupLink } from "./groups_data.mjs";

const REFRESH_S = 3;
const FORM = /^([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([A-Za-z]{3})(?:\s+(SOFT|HARD))?$/i;
const of = (limits, unit) => limits.find((limit) => limit.unit === unit) ?? null;
const amount = (limit) => `${limit.amount} ${limit.currency}`;
const shown = (limit) => (limit ? `${amount(limit)}${limit.enforcement === "SOFT" ? "" : ` ${limit.enforcement}`}` : "none");
const REFUSES = { SOFT: "soft: refuses once it is reached", HARD: "hard: refuses what could exceed it" };
const spendOf = (unit) => `spend a ${unit.toLowerCase()}`;

/** The element with the bars, or null: no spend limit binds the group. `ancestors`: the groups above. */
export function drawSpend(group, ancestors) {
  if (group.effective_spend_limits.length === 0) return null;
  const byId = new Map(ancestors.map((one) => [one.id, one]));
  const who = (id) => (id === group.id ? "this group" : byId.has(id) ? groupLink(byId.get(id)) : h("code", {}, id));
  const columns = [
    { head: "Limit", cell: (item) => spendOf(item.unit) },
    { head: "Spent", cell: (item) => usageBar(spendOf(item.unit), Number(item.spent), Number(item.amount), `${item.spent} of ${amount(item)}`) },
    { head: "Calls in flight", number: true, cell: (item) => item.reserved },
    { head: "Remaining", number: true, cell: (item) => item.remaining },
    { head: "Enforcement", cell: (item) => REFUSES[item.enforcement] ?? item.enforcement },
    { head: "Set by", cell: (item) => who(item.source_group) },
    { head: "Resets at", cell: (item) => time(item.reset_at) },
  ];
  const place = h("div");
  const load = () => read(route`/v1/gateway/groups/${group.id}/spend`);
  keepFresh(place, REFRESH_S, load, ({ items }) => table("Spend limits", columns, items));
  return h("section", {}, h("h3", {}, "Spend, over all slugs"), place);
}

/** What the group itself sets, in a line. */
export const ownSpend = ({ spend_limits: limits }) => limits.map(spendText).join(", ") || "none";

/** "100.00 EUR a day" */
export const spendText = (limit) => `${shown(limit)} a ${limit.unit.toLowerCase()}`;

/**
 * Fields for the spend limits `limits`, one per unit: `{element, value()}`; `value` is null if one cannot be read.
 * `what`: whose cost it is, in words.
 */
export function spendEditor(limits, what = "What calls of all slugs may cost") {
  const controls = USAGE_UNITS.map((unit) => {
    const present = of(limits, unit);
    return { unit, control: h("input", { name: "spend_limits", autocomplete: "off", placeholder: "100.00 EUR", value: present ? shown(present) : "" }) };
  });
  const fields = controls.map(({ unit, control }) => field(`Spend limit a ${unit.toLowerCase()} (optional)`, control, `${what}: an amount and a currency, which is the same in the whole tree. With HARD behind it, a call that could exceed the amount is refused.`));

  function value() {
    const typed = controls.filter(({ control }) => control.value.trim() !== "");
    const forms = typed.map(({ unit, control }) => ({ unit, control, form: FORM.exec(control.value.trim()) }));
    const wrong = forms.filter(({ form }) => form === null);
    for (const { control } of wrong) control.setAttribute("aria-invalid", "true");
    return wrong.length ? null : forms.map(({ unit, form }) => ({ unit, amount: canonical(form[1]), currency: form[2].toUpperCase(), enforcement: (form[3] ?? "SOFT").toUpperCase() }));
  }

  return { element: h("div", {}, fields), value };
}

/** As the API writes amounts: at least two digits after the point, none that says nothing. */
function canonical(typed) {
  const [whole, fraction = ""] = typed.split(".");
  return `${whole.replace(/^0+(?=[0-9])/, "")}.${fraction.replace(/0+$/, "").padEnd(2, "0")}`;
}

/** What changes: rows of the review. */
export function spendChanges(before, after) {
  return USAGE_UNITS.flatMap((unit) => {
    const [was, becomes] = [before, after].map((group) => shown(of(group.spend_limits, unit)));
    return was === becomes ? [] : [{ what: spendOf(unit), was, becomes, words: ["Over all slugs. What is spent in the window already counts."] }];
  });
}
