// The time that the Spend page shows: whole UTC days, as the address names them, and the months to compare.

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const yearText = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeZone: "UTC" });
const minuteText = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short", timeZone: "UTC" });
const clockText = new Intl.DateTimeFormat("en-GB", { timeStyle: "short", timeZone: "UTC" });
const monthText = new Intl.DateTimeFormat("en-GB", { month: "long", timeZone: "UTC" });

/** The presets: what they are called, and their first and last day. */
export const RANGES = {
  today: { title: "Today", days: (today) => [today, today] },
  "7d": { title: "7 days", days: (today) => [today - 6 * DAY_MS, today] },
  month: { title: "Month to date", days: (today) => [monthStart(today), today] },
  "last-month": { title: "Last month", days: (today) => [monthStart(today, -1), monthStart(today) - DAY_MS] },
};

/**
 * What the address names: `range`, or `from` and `to`, both inclusive; without either, the month to date.
 * Answers `{range, from, to, start, end}`: `range` is "" for days of one's own, `end` is exclusive.
 */
export function periodOf(query) {
  const today = floor(Date.now(), DAY_MS);
  let [from, to] = [query.get("from"), query.get("to")];
  let range = "";
  if (!from && !to) {
    range = Object.hasOwn(RANGES, query.get("range") ?? "") ? query.get("range") : "month";
    [from, to] = RANGES[range].days(today).map(dateText);
  }
  from ||= to;
  to ||= dateText(today);
  return { range, from, to, start: `${from}T00:00:00Z`, end: dayAfter(to) };
}

/** The start of the day behind this date. What is no date is left to the API, which says so. */
function dayAfter(date) {
  const at = Date.parse(`${date}T00:00:00Z`);
  return Number.isNaN(at) ? `${date}T00:00:00Z` : new Date(at + DAY_MS).toISOString();
}

/** The UTC days of a window, as dates. */
export function daysOf({ start_time, end_time }) {
  const days = [];
  for (let at = floor(Date.parse(start_time), DAY_MS); at < Date.parse(end_time); at += DAY_MS) days.push(dateText(at));
  return days;
}

/** The present month: its start. */
export const currentMonth = () => new Date(monthStart(Date.now())).toISOString();

/**
 * The month before the one whose figures are final until `end`: `same`, as much of it, in whole hours, which have sums
 * after their events are deleted; and `whole`. Each `{start, end}`; they may be empty.
 */
export function monthBefore(end) {
  const now = Date.parse(end);
  const [last, current] = [monthStart(now, -1), monthStart(now)];
  const until = Math.min(last + floor(now - current, HOUR_MS), current);
  const between = (from, to) => ({ start: new Date(from).toISOString(), end: new Date(to).toISOString() });
  return { same: between(last, until), whole: between(last, current) };
}

/** "November" of a time. */
export const monthName = (text) => monthText.format(new Date(text));

/** "1 Nov 2026 to 30 Nov 2026, 12:16 UTC"; an end at midnight is the day before it. "30 Nov 2026 until 12:16 UTC" of one day. */
export function windowText(start, end) {
  const [from, to] = [new Date(start), new Date(end)];
  const isWhole = to % DAY_MS === 0 && to > from;
  const [first, last] = [from, isWhole ? to - 1 : to].map((at) => yearText.format(at));
  const time = isWhole ? "" : clockText.format(to);
  if (first === last) return `${first}${time && ` until ${time}`} UTC`;
  return `${first} to ${last}${time && `, ${time}`} UTC`;
}

/** "30 Nov 2026, 12:16" of a time. */
export const utcText = (text) => `${minuteText.format(new Date(text))} UTC`;

function monthStart(at, months = 0) {
  const date = new Date(at);
  return Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + months);
}

const floor = (value, step) => value - (value % step);
const dateText = (at) => new Date(at).toISOString().slice(0, 10);
