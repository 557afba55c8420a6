// The share of calls that failed, as colour and per cent.

import { h } from "../dom.mjs";
import { percent } from "../format.mjs";

const WARN_SHARE = 0.01;
/** The share of errors from which a slug does not work. */
export const BAD_SHARE = 0.05;

/** "12 %" in the colour of its meaning; a dash without calls. */
export function errorRate(errors, calls) {
  if (!calls) return h("span.soft", {}, "–");
  const share = errors / calls;
  const tone = share >= BAD_SHARE ? "bad" : share >= WARN_SHARE ? "warn" : "good";
  const text = percent(errors, calls);
  return errors === 0 ? h("span.good-text", {}, text) : h(`span.badge.${tone}`, {}, text);
}
