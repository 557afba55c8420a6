// The kinds of limits, from control's one table of them (policy/limits/kinds.py).

import { count } from "./format.mjs";
import { LIMITS as table } from "./tables.mjs";

/** By type: `{noun, parts, is_concurrent}`; `parts`: which of a call's tokens count, null if each call counts as 1. */
export const TYPES = table.types;

/** Whether limits of the type count calls in flight, whatever their unit is. */
export const isConcurrent = (type) => TYPES[type]?.is_concurrent ?? false;

/** Whether limits of both kinds are the same limit. */
export const isSameKind = (one, other) => one.type === other.type && (one.unit === other.unit || isConcurrent(one.type));

/** `{type, unit}` each, in the order of trial; one of each type whose unit does not matter. */
export const KINDS = table.kinds.filter((kind, place, all) => all.findIndex((one) => isSameKind(one, kind)) === place);
/** The types of usage limits. */
export const USAGE_TYPES = Object.keys(TYPES).filter((type) => !isConcurrent(type));
export const RATE_UNITS = table.rate_units;
export const USAGE_UNITS = table.usage_units;
export const MIN_THRESHOLD = table.min_threshold;

/** "requests" */
export const nounOf = (type) => TYPES[type]?.noun ?? type.toLowerCase();

/** "requests a minute", "requests in flight" */
export const kindText = ({ type, unit }) => (isConcurrent(type) ? nounOf(type) : `${nounOf(type)} a ${unit.toLowerCase()}`);

/** "100 requests a minute", "1 request a minute". Of a prepaid balance, which has neither unit nor threshold: "balance". */
export function limitText({ type, unit, threshold }) {
  const kind = unit === null ? nounOf(type) : kindText({ type, unit });
  if (threshold === null) return kind;
  return threshold === 1 ? `1 ${kind.replace(/s(?= |$)/, "")}` : `${typeof threshold === "number" ? count(threshold) : threshold} ${kind}`;
}

/** How much of a limit's type a sum of calls is. */
export function amountOf(type, { calls, input_tokens: input, cached_input_tokens: cached, output_tokens: output }) {
  const { parts } = TYPES[type];
  if (parts === null) return calls;
  return (parts.uncached_input ? input - cached : 0) + (parts.cached_input ? cached : 0) + (parts.output ? output : 0);
}
