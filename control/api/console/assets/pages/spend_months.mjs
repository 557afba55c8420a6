// The present month beside the last one: as much of it as is over now, and the whole of it.

import { h } from "../dom.mjs";
import { count } from "../format.mjs";
import { problemNotice } from "../notice.mjs";
import { costFigures, figure } from "./spend_money.mjs";
import { currentMonth, monthBefore, monthName, windowText } from "./spend_period.mjs";
import { queryOf, readReport } from "./spend_reports.mjs";

const NOTHING = { calls: 0, cost: null, unpriced_calls: 0 };

/** Fill `container` with the months. What fails is said there: the page shows the rest. */
export async function drawMonths(container, view) {
  container.append(h("p.soft", { role: "status" }, "Adding up the months …"));
  try {
    const current = await readMonth(view, { start: currentMonth(), end: null });
    const { same, whole } = monthBefore(current.end);
    const [partly, last] = await Promise.all([readMonth(view, same), readMonth(view, whole)]);
    const [now, before] = [monthName(current.start), monthName(whole.start)];
    container.replaceChildren(
      h(
        "div.months",
        {},
        column(`${now} to date`, current, difference(current, partly, before)),
        column(`${before}, the same days`, partly),
        column(`${before}, the whole month`, last),
      ),
    );
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

function column(title, { start, end, sums }, note = null) {
  const time = start === end ? "no whole hour yet" : windowText(start, end);
  const calls = `${count(sums.calls)} ${sums.calls === 1 ? "call" : "calls"}${sums.unpriced_calls ? `, ${count(sums.unpriced_calls)} without a price` : ""}`;
  return h("section.month", { "aria-label": title }, h("h2", {}, title), h("p.soft", {}, time), h("dl.figures-row", {}, sums.cost ? costFigures("Cost", sums) : figure("Cost", "–")), h("p.soft", {}, [calls, note && `. ${note}`]));
}

/** How much more or less than before, in per cent; floats will do for that. */
function difference({ sums: now }, { sums: before }, month) {
  const parts = Object.keys(now.cost ?? {}).filter((currency) => Number(before.cost?.[currency] ?? 0) > 0);
  const words = parts.map((currency) => {
    const share = Math.round((100 * Number(now.cost[currency])) / Number(before.cost[currency])) - 100;
    return share === 0 ? `as much ${currency} as` : `${count(Math.abs(share))} % ${share > 0 ? "more" : "less"} ${currency} than`;
  });
  return words.length ? `${words.join(", ")} in the same days of ${month}` : null;
}
