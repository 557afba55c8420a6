// The kinds of limits, from control's one table of them (policy/limits/kinds.py).

import { LIMITS as table } from "./tables.mjs";

/** `{type, unit}` each, in the order of trial. */
export const KINDS = table.kinds;
/** By type: `{noun, parts}`; `parts`: which of a call's tokens count, null if each call counts as 1. */
export const TYPES = table.types;
export const RATE_UNITS = table.rate_units;
export const USAGE_UNITS = table.usage_units;
export const MIN_THRESHOLD = table.min_threshold;

/** "requests" */
export const nounOf = (type) => TYPES[type]?.noun ?? type.toLowerCase();

/** "requests a minute" */
export const kindText = ({ type, unit }) => `${nounOf(type)} a ${unit.toLowerCase()}`;

/** How much of a limit's type a sum of calls is. */
export function amountOf(type, { calls, input_tokens: input, cached_input_tokens: cached, output_tokens: output }) {
  const { parts } = TYPES[type];
  if (parts === null) return calls;
  return (parts.uncached_input ? input - cached : 0) + (parts.cached_input ? cached : 0) + (parts.output ? output : 0);
}
