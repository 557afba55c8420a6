// The present month beside the last one: as much of it as is over now, and the whole of it.

import { h } from "../dom.mjs";
import { count } from "../format.mjs";
import { problemNotice } from "../notice.mjs";
import { table } from "../table.mjs";
import { amountText, money } from "./spend_money.mjs";
import { currentMonth, monthBefore, monthName, windowText } from "./spend_period.mjs";
import { currenciesOf, queryOf, readReport } from "./spend_reports.mjs";

const NOTHING = { calls: 0, cost: null, unpriced_calls: 0 };

/** Fill `container` with the months. What fails is said there: the page shows the rest. */
export async function drawMonths(container, view) {
  container.append(h("p.soft", { role: "status" }, "Adding up the months …"));
  try {
    const current = await readMonth(view, { start: currentMonth(), end: null });
    const { same, whole } = monthBefore(current.end);
    const [partly, last] = await Promise.all([readMonth(view, same), readMonth(view, whole)]);
    container.replaceChildren(comparison(current, partly, last));
  } catch (error) {
    container.replaceChildren(problemNotice(error));
  }
}

/** The sums of a window. One without any time has none. */
async function readMonth(view, { start, end }) {
  if (end !== null && end <= start) return { start, end, sums: NOTHING };
  const { window, totals } = await readReport({ ...queryOf(view, "day"), start, end, limit: 1000 });
  return { start: window.start_time, end: window.end_time, sums: totals };
}

/** A row for each window. The first one says how it differs from the second. */
function comparison(current, partly, last) {
  const before = monthName(last.start);
  const rows = [
    { ...current, name: `${monthName(current.start)} to date`, earlier: partly.sums },
    { ...partly, name: `${before}, the same days` },
    { ...last, name: `${before}, the whole month` },
  ];
  const currencies = [...new Set(rows.flatMap(({ sums }) => currenciesOf(sums)))].sort();
  const compared = (value) => ({ sums, earlier }) => earlier && difference(value(sums), value(earlier));
  const columns = [
    { head: "Month", cell: ({ name, start, end }) => [name, h("div.soft", {}, start === end ? "no whole hour yet" : windowText(start, end))] },
    ...currencies.map((currency) => {
      const change = compared((sums) => amountText(sums, currency));
      return { head: `Cost (${currency})`, number: true, cell: (row) => [costOf(row.sums, currency), change(row)] };
    }),
    { head: "Calls", number: true, cell: (row) => [count(row.sums.calls), compared((sums) => sums.calls)(row)] },
    ...(rows.some(({ sums }) => sums.unpriced_calls) ? [{ head: "Without a price", number: true, cell: ({ sums }) => count(sums.unpriced_calls) }] : []),
  ];
  return table("This month and the last one", columns, rows);
}

function costOf(sums, currency) {
  const amount = amountText(sums, currency);
  return amount === null ? "–" : money(amount);
}

/** How much more or less than before, in per cent; floats will do for that. Nothing to compare with: null. */
function difference(now, before) {
  if (Number(before) === 0) return null;
  const share = Math.round((100 * Number(now)) / Number(before)) - 100;
  const text = share === 0 ? "± 0 %" : `${share > 0 ? "+" : "−"}${count(Math.abs(share))} %`;
  return h("div.soft", {}, `${text} on the same days`);
}
