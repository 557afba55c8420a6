// Limits as bars: what is used, which one has the least left, when it resets.

import { h } from "./dom.mjs";
import { usageBar } from "./chart.mjs";
import { count, duration } from "./format.mjs";
import { isConcurrent, nounOf } from "./limit_kinds.mjs";
import { table } from "./table.mjs";

/** A table of the items of `GET …/limits`. `source(item)`: where a limit is from, for those who may see it. */
export function limitBars(caption, items, { source = null, key = caption } = {}) {
  return table(
    caption,
    [
      { head: "Slug", cell: ({ slug }) => h("code", {}, slug) },
      { head: "Limit", cell: limitName },
      { head: "Used", cell: usedOf },
      { head: "Resets in", number: true, cell: ({ resets_in_s: left }) => (left === null || left === undefined ? "–" : duration(left)) },
      { head: "Binding", cell: ({ binds }) => binds && h("span.badge", {}, "binding") },
      source && { head: "From", cell: source },
    ].filter(Boolean),
    items,
    { key },
  );
}

/** Null: a shared limit, whose use would tell of others. */
function usedOf(item) {
  if (item.current_usage === null) return `at most ${count(item.threshold)}, with others`;
  return usageBar(`${limitName(item)} of ${item.slug}`, item.current_usage, item.threshold);
}

/** "requests per minute", "requests in flight" */
export function limitName({ type, unit }) {
  return isConcurrent(type) ? nounOf(type) : `${nounOf(type)} per ${unit.toLowerCase()}`;
}
