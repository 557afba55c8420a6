// Cost by day: bars for each currency by itself.

import { timeChart } from "../chart.mjs";
import { h } from "../dom.mjs";
import { brief } from "../format.mjs";
import { downloadButton } from "./spend_lists.mjs";
import { amountText } from "./spend_money.mjs";
import { daysOf } from "./spend_period.mjs";
import { currenciesOf, queryOf } from "./spend_reports.mjs";

const TONES = ["a", "b", "c", "d"];

/** The section. `report`: the days of the view. */
export function drawDays(view, report) {
  const dates = daysOf(report.window);
  const byDate = new Map(report.items.map((item) => [item.day, item]));
  const days = dates.map((date) => byDate.get(date) ?? { calls: 0, cost: null });
  const times = dates.map((date) => new Date(`${date}T00:00:00Z`));
  const costs = currenciesOf(report.totals).map((currency, at) => costChart(currency, TONES[at % TONES.length], times, days));
  const calls = costs.length === 0 && timeChart("Calls by day", times, [{ name: "calls", tone: "b", values: days.map((day) => day.calls) }], { kind: "bars" });
  return h(
    "section",
    {},
    h("div.section-head", {}, h("h2", {}, "By day"), downloadButton("day", queryOf(view, "day"), report.window)),
    h("div.cards", {}, ...costs, calls),
  );
}

/** Amounts are text, so that the table and the tooltip have every digit. */
function costChart(currency, tone, times, days) {
  const values = days.map((day) => amountText(day, currency) ?? "0");
  const tick = (value) => (value < 1000 ? String(value) : brief(value));
  return timeChart(`Cost by day in ${currency}`, times, [{ name: currency, tone, values }], { kind: "bars", format: (amount) => `${amount} ${currency}`, tick });
}
