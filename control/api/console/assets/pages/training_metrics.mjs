// The metrics of a job: read as they grow, drawn as curves over its steps.

import { read } from "../api.mjs";
import { chart, timeChart } from "../chart.mjs";
import { h, redraw } from "../dom.mjs";
import { nothing } from "../notice.mjs";

const ANSWER = 10_000; // points in one answer at most
const LATE_MS = 15_000; // output of several nodes arrives out of order
const MOST_DRAWN = 400;
const TONES = ["a", "b", "c", "d"];

/** Reads what is new of a job's metrics, and keeps what was read. */
export class Metrics {
  constructor(path) {
    this.path = path;
    this.since = null;
    this.points = new Map();
  }

  /** Read on. Answers the points by name. */
  async load() {
    let isFull = true;
    while (isFull) {
      const { metrics } = await read(this.path, { since: this.since });
      isFull = this.take(metrics);
    }
    return this.points;
  }

  take(metrics) {
    const from = this.since === null ? -Infinity : Date.parse(this.since);
    for (const [name, known] of this.points) this.points.set(name, known.filter((one) => Date.parse(one.timestamp) < from));
    let [latest, found] = [null, 0];
    for (const { name, points } of metrics) {
      this.points.set(name, (this.points.get(name) ?? []).concat(points));
      found += points.length;
      const last = points.at(-1)?.timestamp;
      if (last && (latest === null || last > latest)) latest = last;
    }
    const isFull = found >= ANSWER && latest !== this.since;
    if (latest !== null) this.since = isFull ? latest : later(this.since, new Date(Date.parse(latest) - LATE_MS).toISOString());
    return isFull;
  }
}

const later = (one, other) => (one !== null && one > other ? one : other);

/** A curve for each metric, in `cards`. */
export function metricCharts(cards, points) {
  const names = [...points.keys()].filter((name) => points.get(name).length).sort();
  if (names.length === 0) return nothing("No metric yet. A job reports one by printing ", h("code", {}, '{"metric": "loss", "step": 1, "value": 0.5}'), ".");
  redraw(cards, names.map((name, at) => curve(name, points.get(name), TONES[at % TONES.length])));
  return cards;
}

function curve(name, points, tone) {
  const drawn = sampled(points);
  const series = [{ name, tone, values: drawn.map((one) => one.value) }];
  const title = `${name}, last ${figure(points.at(-1).value)}${drawn.length < points.length ? ` (means of ${points.length} points)` : ""}`;
  const options = { format: figure, isFromZero: false, key: name };
  if (points.every((one) => one.step !== null)) return chart(title, drawn.map((one) => `step ${one.step}`), series, options);
  return timeChart(title, drawn.map((one) => new Date(one.timestamp)), series, options);
}

/** All points, or as many means of neighbours as can be told apart. */
function sampled(points) {
  const size = Math.ceil(points.length / MOST_DRAWN);
  if (size === 1) return points;
  const drawn = [];
  for (let at = 0; at < points.length; at += size) {
    const part = points.slice(at, at + size);
    drawn.push({ ...part.at(-1), value: part.reduce((sum, one) => sum + one.value, 0) / part.length });
  }
  return drawn;
}

const figure = (value) => (value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(2) : String(Number(value.toPrecision(4))));
