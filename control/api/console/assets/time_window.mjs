// The window of time that a page shows: so long until now, or from one time to another. It is kept in the address.

import { h } from "./dom.mjs";
import { field, select } from "./form.mjs";

const MINUTES = { "15m": 15, "1h": 60, "6h": 360, "24h": 1440, "7d": 10_080, "30d": 43_200 };
const SAID = { "15m": "Last 15 minutes", "1h": "Last hour", "6h": "Last 6 hours", "24h": "Last 24 hours", "7d": "Last 7 days", "30d": "Last 30 days" };

/**
 * What the address names: `last`, or `start_time` and `end_time`; without either, `preset` ("" is no bound).
 * Answers `{last, start_time, end_time}`: what the API takes; `last` is "" for times of the address.
 */
export function windowOf(query, preset) {
  const [start, end] = [query.get("start_time"), query.get("end_time")];
  if (start || end) return { last: "", start_time: start, end_time: end };
  const last = query.get("last") in MINUTES ? query.get("last") : preset;
  return { last, start_time: last ? new Date(Date.now() - MINUTES[last] * 60_000).toISOString() : null, end_time: null };
}

/**
 * The controls of a window, and what they say: `{fields, chosen()}`. `chosen` answers parameters for the address.
 * `unbounded`: what no bound is called; null if the API needs a start.
 */
export function windowFields(shown, unbounded = null) {
  const isCustom = Boolean(!shown.last && (shown.start_time || shown.end_time));
  const options = [...(unbounded ? [["", unbounded]] : []), ...Object.entries(SAID), ["custom", "From … to …"]];
  const preset = select("last", options, isCustom ? "custom" : shown.last, { onchange: () => showTimes() });
  const [start, end] = ["start_time", "end_time"].map((name) => h("input", { type: "datetime-local", step: 1, name }));
  start.value = isCustom ? typed(shown.start_time) : "";
  end.value = isCustom ? typed(shown.end_time) : "";
  const times = [field("From (UTC)", start), field("To (UTC), exclusive", end)];

  function showTimes() {
    for (const one of times) one.hidden = preset.value !== "custom";
  }

  function chosen() {
    if (preset.value !== "custom") return { last: preset.value };
    return { start_time: utc(start.value), end_time: utc(end.value) };
  }

  showTimes();
  return { fields: [field("Time", preset), ...times], chosen };
}

/** As a field of UTC takes it. */
export function typed(text) {
  if (!text || Number.isNaN(Date.parse(text))) return "";
  return new Date(text).toISOString().slice(0, 23).replace(".000", "");
}

/** The time that a field of UTC has, as the API takes it; null if it is empty. */
export const utc = (value) => (value ? new Date(`${value}Z`).toISOString() : null);
