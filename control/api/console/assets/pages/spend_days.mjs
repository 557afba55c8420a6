// Cost by day: bars for each currency by itself.

import { chart } from "../chart.mjs";
import { h } from "../dom.mjs";
import { downloadButton } from "./spend_lists.mjs";
import { amountText } from "./spend_money.mjs";
import { dayName, daysOf } from "./spend_period.mjs";
import { currenciesOf, queryOf } from "./spend_reports.mjs";

const TONES = ["a", "b", "c", "d"];

/** The section. `report`: the days of the view. */
export function drawDays(view, report) {
  const dates = daysOf(report.window);
  const byDate = new Map(report.items.map((item) => [item.day, item]));
  const days = dates.map((date) => byDate.get(date) ?? { calls: 0, cost: null });
  const labels = dates.map(dayName);
  const costs = currenciesOf(report.totals).map((currency, at) => costChart(currency, TONES[at % TONES.length], labels, days));
  const calls = costs.length === 0 && chart("Calls by day", labels, [{ name: "calls", tone: "b", values: days.map((day) => day.calls) }], { kind: "bars" });
  return h(
    "section",
    {},
    h("div.section-head", {}, h("h2", {}, "By day"), downloadButton("day", queryOf(view, "day"), report.window)),
    h("div.cards", {}, [...costs, calls].filter(Boolean).map((one) => h("div.card", {}, one))),
  );
}

/** Numbers are for the height of a bar alone; texts are the exact amounts. */
function costChart(currency, tone, labels, days) {
  const amounts = days.map((day) => amountText(day, currency) ?? "0");
  const texts = new Map(amounts.map((amount) => [Number(amount), amount]));
  const format = (value) => `${texts.get(value) ?? Number(value.toPrecision(6))} ${currency}`;
  return chart(`Cost by day in ${currency}`, labels, [{ name: currency, tone, values: amounts.map(Number) }], { kind: "bars", format });
}
