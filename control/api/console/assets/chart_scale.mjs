// What a chart's axes show: round values, round times in UTC, and where an axis is cut for an outlier.

const SECOND_MS = 1000;
const MINUTE_MS = 60_000;
export const DAY_MS = 86_400_000;
const TIME_STEPS = [
  ...[1, 5, 15, 30].map((seconds) => seconds * SECOND_MS),
  ...[1, 5, 10, 15, 30, 60, 180, 360, 720].map((minutes) => minutes * MINUTE_MS),
  ...[1, 2, 5, 10, 30, 90, 365].map((days) => days * DAY_MS),
];
const FEWEST = 5; // values; of fewer none is an outlier
const OUTLIER = 4; // times as high as nine of ten values are

const utc = (options) => new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", ...options });
const clock = utc({ hour: "2-digit", minute: "2-digit" });
const clockWithSeconds = utc({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = utc({ day: "numeric", month: "short" });

/** Round values from `low` or below it to `high` or above it, about `most` steps: `[0, 50, 100, 150]`. */
export function valueTicks(low, high, isWhole, most = 4) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const round = power * ([1, 2, 5].find((one) => one * power >= rough) ?? 10);
  const step = isWhole ? Math.max(1, round) : round;
  const [first, last] = [Math.floor(low / step), Math.ceil(high / step)];
  return Array.from({ length: last - first + 1 }, (_, at) => Number(((first + at) * step).toPrecision(12)));
}

/** Round times from one to another, at most `most`: `{at, label}`. A midnight is labelled with its day. */
export function timeTicks(from, to, most = 5) {
  const step = TIME_STEPS.find((one) => (to - from) / one <= most) ?? TIME_STEPS.at(-1);
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    const format = at % DAY_MS === 0 ? day : step < MINUTE_MS ? clockWithSeconds : clock;
    ticks.push({ at, label: format.format(at) });
  }
  return ticks;
}

/** Some of `indices`, evenly spread. */
export function labelTicks(indices, most = 5) {
  const step = Math.ceil(indices.length / most);
  return indices.filter((_, at) => at % step === 0);
}

/** The times as text: days where all are midnights. */
export function timeLabels(stamps) {
  if (stamps.every((at) => at % DAY_MS === 0)) return stamps.map((at) => day.format(at));
  const format = stamps.every((at) => at % MINUTE_MS === 0) ? clock : clockWithSeconds;
  return stamps.map((at) => `${day.format(at)}, ${format.format(at)} UTC`);
}

/** Where the axis ends so that some outliers do not flatten all other values; null if it need not be cut. */
export function cutOf(values) {
  const sorted = values.filter((value) => value > 0).sort((one, other) => one - other);
  if (sorted.length < FEWEST) return null;
  const ordinary = sorted[Math.floor(0.9 * (sorted.length - 1))];
  return sorted.at(-1) > OUTLIER * ordinary ? 1.25 * ordinary : null;
}
