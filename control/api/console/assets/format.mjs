// Numbers, times and sizes as people read them. Times are shown in the viewer's zone, with UTC in the title.

import { h } from "./dom.mjs";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const moment = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const thisYear = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
const minute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const dayAndMinute = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const STEPS = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];

/** 12,345 */
export const count = (value) => whole.format(value);

/** 12.3K, for places without room. */
export const brief = (value) => (Math.abs(value) < 10_000 ? whole.format(value) : short.format(value));

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
  return h("time", { datetime: text, title: `${moment.format(at)} (${text})` }, said);
}

/** A `<time>`: "24 Nov, 18:10:02", with the year if it is another one; UTC in its title. A dash for null. */
export function time(text) {
  if (!text) return "–";
  const at = new Date(text);
  const format = at.getFullYear() === new Date().getFullYear() ? thisYear : moment;
  return h("time", { datetime: text, title: text }, format.format(at));
}

/** 18:10, or with the day. */
export const clockTime = (at, withDay = false) => (withDay ? dayAndMinute : minute).format(at);
