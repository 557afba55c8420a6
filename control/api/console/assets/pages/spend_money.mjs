// Amounts of money as the API writes them: exact decimal text, which is never calculated with here.

import { h } from "../dom.mjs";
import { currenciesOf } from "./spend_reports.mjs";

/** An exact amount. Thousands stand apart and digits behind the cents are smaller, in looks alone: the text stays as it is. */
export function money(amount) {
  const [whole, fraction = ""] = amount.split(".");
  const thousands = whole.split(/(?=(?:\d{3})+$)/).map((digits) => h("span", {}, digits));
  const cents = fraction && `.${fraction.slice(0, 2)}`;
  return h("span.money", {}, h("span.thousands", {}, thousands), cents, fraction.length > 2 && h("span.fine", {}, fraction.slice(2)));
}

/** An amount as text, or null. */
export const amountText = (sums, currency) => sums.cost?.[currency] ?? null;

/** A tile; `title`: its whole value, `note`: what is below it. */
export function figure(name, value, { title = null, note = null } = {}) {
  const text = h("div.value", { title }, value);
  text.style.setProperty("--chars", String(text.textContent.length));
  return h("div.figure", {}, h("dt", {}, name), h("dd", {}, text, note && h("div.note", {}, note)));
}

/** A tile for each currency, side by side; one without an amount where no call has a price. */
export function costFigures(name, sums) {
  const currencies = currenciesOf(sums);
  if (currencies.length === 0) return figure(name, "–", { note: "no call has a price" });
  return currencies.map((currency) => figure(`${name} in ${currency}`, money(sums.cost[currency])));
}
