// What the Spend page shows, as its address says, and the usage reports that it reads: each sum comes from the API.

import { read, withQuery } from "../api.mjs";
import { periodOf } from "./spend_period.mjs";

const PATH = "/v1/gateway/usage_report";
const PAGE = 1000;
const SUMS = ["calls", "input_tokens", "cached_input_tokens", "output_tokens", "unpriced_calls"];
const FURTHER_SUMS = [
  ...["cache_write_tokens", "cache_write_1h_tokens", "reasoning_tokens", "audio_input_tokens", "image_input_tokens"],
  ...["audio_output_tokens", "image_output_tokens", "server_tool_calls", "uncharged_calls"],
];
const NAMES = { day: ["day"], slug: ["slug"], entity: ["external_entity_id", "group_id"], key: ["external_entity_id", "api_key_prefix"] };

/** The groupings that have a list of their own. */
export const GROUPINGS = ["entity", "slug", "key"];

/** What the address names. `by`: the grouping whose whole list is shown, or null. */
export function viewOf(query) {
  const by = GROUPINGS.includes(query.get("by")) ? query.get("by") : null;
  const [order_by, order, currency] = ["order_by", "order", "currency"].map((name) => query.get(name));
  return { period: periodOf(query), entity: query.get("entity"), slug: query.get("slug"), by, order_by, order, currency };
}

/** The address of a view. */
export function addressOf({ period, ...others }) {
  const { range, from, to } = period;
  return withQuery("/console/spend", { ...(range ? { range } : { from, to }), ...others });
}

/** The parameters of a view's report by `grouping`. The sums of one group have those of all below it. */
export function queryOf({ period, entity, slug }, grouping) {
  const rollup = grouping === "entity" || (entity && grouping !== "key");
  return { start: period.start, end: period.end, group_by: grouping, external_entity_id: entity, model_slug: slug, rollup: rollup ? "true" : null };
}

/** The order of a view's lists: by the cost in one of these currencies, if the view names no other sum. */
export function orderOf({ order_by, order, currency }, currencies) {
  const by = order_by || (currencies.length ? "cost" : "calls");
  return { order_by: by, order: order || "desc", currency: by === "cost" ? currency || currencies[0] : null };
}

/** A page of a report. */
export const readReport = (query) => read(PATH, query);

/** All pages of a report as one, with the totals of the first. `progress(count)` is called behind each page. */
export async function readWhole(query, progress = () => {}) {
  const first = await read(PATH, { ...query, limit: PAGE });
  const items = [...first.items];
  for (let { cursor } = first.pagination; cursor; ) {
    progress(items.length);
    const page = await read(PATH, { cursor });
    items.push(...page.items);
    cursor = page.pagination.cursor;
  }
  return { ...first, items };
}

/** The currencies of sums, in the order of their names. */
export const currenciesOf = ({ cost }) => Object.keys(cost ?? {});

/** The rows of a file, as `tollgate usage report --format csv` has them: one for each item and currency. */
export function csvRows(grouping, items) {
  const names = NAMES[grouping].filter((name) => name !== "group_id" || items.some((item) => item.group_id));
  const hasOwn = items.some((item) => item.own);
  const rows = [[...names, ...SUMS, "currency", "cost", ...FURTHER_SUMS, ...(hasOwn ? ["own_calls", "own_cost"] : [])]];
  for (const item of items) {
    const costs = Object.entries(item.cost ?? { "": "" });
    costs.forEach(([currency, amount], at) => {
      // Counts are in the first row of an item alone, so sums over a column stay right.
      const counts = (all) => all.map((name) => (at === 0 ? (item[name] ?? 0) : 0));
      const own = hasOwn ? [at === 0 ? item.own.calls : 0, item.own.cost?.[currency] ?? ""] : [];
      rows.push([...names.map((name) => item[name] ?? ""), ...counts(SUMS), currency, amount, ...counts(FURTHER_SUMS), ...own]);
    });
  }
  return rows;
}
