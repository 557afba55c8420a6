// Files for a customer: a month's statement, and the figures of the usage page.

import { readFile } from "../api.mjs";
import { h } from "../dom.mjs";
import { csvLine, saveFile } from "../files.mjs";
import { actionButton, field, form, select } from "../form.mjs";
import { announce, nothing } from "../notice.mjs";

const SUMS = ["calls", "uncached_input_tokens", "cached_input_tokens", "output_tokens"];
const FORMATS = [["csv", "CSV, for a spreadsheet"], ["html", "HTML, to print"]];
const monthName = new Intl.DateTimeFormat("en-GB", { month: "long", year: "numeric", timeZone: "UTC" });

/** The section. `path`: below which the page's data are; `latest()`: the newest of them. */
export function downloads(path, latest) {
  return h("section", {}, h("h2", {}, "Statements"), statements(path, latest()), h("h2", {}, "Figures as CSV"), figures(latest));
}

function statements(path, { statements: months, totals, slugs, spend_limits: spendLimits }) {
  if (months.length === 0) return nothing("No month has a statement yet.");
  const month = select("month", months.map(({ month: name, status }) => [name, `${monthName.format(new Date(`${name}-01T00:00:00Z`))}${status === "draft" ? " (draft)" : ""}`]));
  const format = select("format", FORMATS);
  const below = hasBelow([totals.month, ...slugs]) && select("with_groups_below", [["false", "Own calls"], ["true", "With groups below"]]);
  async function download() {
    const query = { month: month.value, format: format.value, with_groups_below: below ? below.value : null };
    const isDraft = months.find((one) => one.month === month.value).status === "draft";
    const scope = below && below.value === "true" ? "-with-groups-below" : "";
    saveFile(`statement-${month.value}${scope}${isDraft ? "-draft" : ""}.${format.value}`, await readFile(`${path}/statement`, query));
    announce("The statement is ready");
  }
  return h(
    "div",
    {},
    h("p.soft", {}, spendLimits ? "Calls and exact amounts by slug and price, for a UTC month." : "Calls and tokens by slug, for a UTC month.", " A draft is of a month whose calls are not all final; more may be added."),
    h("div.card", {}, form("Download", [field("Month", month), field("Format", format), below && field("Calls", below)], download, { inline: true })),
  );
}

function figures(latest) {
  const files = [
    ["days", "Days", (data) => sumsTable(data.days, "date")],
    ["slugs", "Slugs", (data) => sumsTable(data.slugs, "slug")],
    ["keys", "Keys", (data) => keysTable(data.keys)],
  ];
  function save(name, make) {
    const data = latest();
    saveFile(`usage-${name}-${data.as_of.slice(0, 10)}.csv`, new Blob([make(data).map(csvLine).join("")], { type: "text/csv" }));
    announce(`The file of ${name} is ready`);
  }
  const buttons = files.map(([name, text, make]) => [actionButton(text, () => save(name, make)), " "]);
  return h("div", {}, h("p.soft", {}, "The figures of this page, of the last 31 days."), h("p", {}, buttons));
}

/** Rows of sums, with those of groups below where they differ, and a column for each currency of costs. */
function sumsTable(rows, name) {
  const scopes = [["", (row) => row], ...(hasBelow(rows) ? [["with_groups_below_", (row) => row.with_groups_below]] : [])];
  const columns = scopes.flatMap(([prefix, of]) => {
    const costs = rows.some((row) => "cost" in row) ? currenciesOf(rows.map(of)) : [];
    return [
      ...SUMS.map((sum) => [`${prefix}${sum}`, (row) => of(row)[sum]]),
      ...costs.map((currency) => [`${prefix}cost_${currency}`, (row) => of(row).cost?.[currency] ?? ""]),
      ...(rows.some((row) => "cost" in row) ? [[`${prefix}unpriced_calls`, (row) => of(row).unpriced_calls]] : []),
    ];
  });
  return [[name, ...columns.map(([head]) => head)], ...rows.map((row) => [row[name], ...columns.map(([, cell]) => cell(row))])];
}

const currenciesOf = (sums) => [...new Set(sums.flatMap(({ cost }) => Object.keys(cost ?? {})))].sort();

function keysTable(keys) {
  return [["prefix", "name", "created_at", "last_used_at", "calls"], ...keys.map((key) => [key.prefix, key.name, key.created_at, key.last_used_at, key.calls])];
}

/** Whether some sums with groups below are others than the group's own. */
export const hasBelow = (all) => all.some((one) => one.with_groups_below.calls !== one.calls);
