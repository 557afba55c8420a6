// Numbers, times and sizes as people read them. Times are shown in UTC, with the viewer's own in the title.

import { h } from "./dom.mjs";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const local = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long" });
const utc = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium", timeZone: "UTC" });
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium", timeZone: "UTC" });
const thisYear = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZone: "UTC" });
const STEPS = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];

/** 12,345 */
export const count = (value) => whole.format(value);

/** 12.3K, for places without room. */
export const brief = (value) => (Math.abs(value) < 10_000 ? whole.format(value) : short.format(value));

/** EUR 12.40, from exact decimal text. What is less than a hundredth is not shown as nothing. */
export function money(amount, currency) {
  const shown = new Intl.NumberFormat("en", { style: "currency", currency, currencyDisplay: "code" });
  return Number(amount) > 0 && Number(amount) < 0.01 ? `< ${shown.format(0.01)}` : shown.format(amount);
}

/** 3.4 % of a whole. */
export function percent(part, all) {
  if (!all) return "–";
  const value = (100 * part) / all;
  return `${value === 0 ? "0" : value < 0.1 ? "< 0.1" : value.toFixed(value < 10 ? 1 : 0)} %`;
}

/** 87 ms, 1.24 s, or a dash. */
export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(value < 10_000 ? 2 : 1)} s`;
}

/** 1.2 MB */
export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  let rest = value;
  while (rest >= 1000 && at < units.length - 1) {
    rest /= 1000;
    at += 1;
  }
  return `${at === 0 ? rest : rest.toFixed(1)} ${units[at]}`;
}

/** 2 h 5 min; the two largest units. */
export function duration(seconds) {
  let rest = Math.max(0, Math.round(seconds));
  const said = [];
  for (const [unit, size] of STEPS) {
    if (rest >= size || (unit === "s" && said.length === 0)) said.push(`${Math.floor(rest / size)} ${unit}`);
    rest %= size;
    if (said.length === 2) break;
  }
  return said.join(" ");
}

/** A `<time>`: "5 min ago"; the whole time in its title. A dash for null. */
export function ago(text) {
  if (!text) return "–";
  const at = new Date(text);
  const seconds = (Date.now() - at) / 1000;
  const said = Math.abs(seconds) < 5 ? "just now" : seconds > 0 ? `${duration(seconds).split(/(?<=[a-z]) /)[0]} ago` : `in ${duration(-seconds)}`;
  return h("time", { datetime: text, title: `${utc.format(at)} UTC, here ${local.format(at)}` }, said);
}

/** A `<time>`: "24 Nov, 18:10:02 UTC", with the year if it is another one. A dash for null. */
export function time(text) {
  if (!text) return "–";
  const at = new Date(text);
  const format = at.getUTCFullYear() === new Date().getUTCFullYear() ? thisYear : utc;
  return h("time", { datetime: text, title: `here ${local.format(at)}` }, `${format.format(at)} UTC`);
}

/** 23:04:12 UTC */
export const clockTime = (at) => `${clock.format(at)} UTC`;
