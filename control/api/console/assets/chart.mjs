// Charts of values over time or steps: round ticks, a grid, a tooltip at the pointer and by the arrow keys, and zoom.

import { picture } from "./chart_marks.mjs";
import { Reading } from "./chart_reading.mjs";
import { cutOf, labelTicks, timeLabels, timeTicks, valueTicks, DAY_MS } from "./chart_scale.mjs";
import { chartTable } from "./chart_table.mjs";
import { h, redraw } from "./dom.mjs";
import { select } from "./form.mjs";
import { brief, count, percent } from "./format.mjs";

const charts = new Map(); // by key: a chart that is drawn again keeps its zoom, its cut, and the value that is read
const FEWEST_TO_ZOOM = 4;

/**
 * Values over time. `times`: a Date per value. `series`: `{name, tone, values}`; `tone` is "a" to "d" or "bad"; a value is a
 * number, an amount as decimal text, or null for no data. Options: `kind`, "bars" are stacked, "lines" are not; `format`, a
 * value as text; `tick`, the same at the axis; `choose`, what a series is ("Slug"), to show one of them at a time;
 * `isFromZero`, whether the axis has to show 0; `key`, if the title changes. The same key is the same element, updated.
 */
export function timeChart(title, times, series, options = {}) {
  const stamps = times.map(Number);
  return updated(title, { labels: timeLabels(stamps), stamps, series, zone: "UTC" }, options);
}

/** The same over anything that has a label per value, such as the steps of a training job. `zone`: if they are times. */
export function chart(title, labels, series, { zone = "", ...options } = {}) {
  return updated(title, { labels, stamps: null, series, zone }, options);
}

function updated(title, data, { key = title, ...options }) {
  if (!charts.has(key)) charts.set(key, new Chart(key));
  return charts.get(key).update(title, data, options);
}

class Chart {
  bounds = null; // of the zoom: the first and the last time, or label, that are shown
  isUncut = false; // whether the axis shows outliers in full
  choice = null; // the name of the one series that is shown

  constructor(key) {
    this.caption = h("figcaption");
    this.area = h("div.area", { "aria-hidden": "true" });
    this.reading = new Reading(this, key, this.area);
    this.notes = h("div.chart-notes");
    this.status = h("span", { role: "status" });
    const button = (text, keyOf, act) => h("button.plain", { type: "button", "data-key": `${keyOf} ${key}`, "aria-label": `${text}: ${key}`, onclick: act }, text);
    this.closer = button("Zoom in", "closer", () => this.reading.zoomIn());
    this.closer.title = "Or drag over the chart; with the keyboard, press + and −";
    this.whole = button("Show all", "whole", () => this.zoom());
    this.cutSwitch = h("button.plain", { type: "button", "data-key": `cut ${key}`, onclick: () => ((this.isUncut = !this.isUncut), this.draw()) });
    this.table = chartTable(this, key);
    this.figure = h("figure.chart", {}, this.caption, this.reading.plot, this.notes, h("div.chart-foot", {}, this.status, this.closer, this.whole), this.table.element);
  }

  /** Draw new values. Answers the element, which stays the same. */
  update(title, data, { kind = "lines", format = count, tick = format === count ? brief : format, choose = "", isFromZero = true }) {
    const series = data.series.map((one) => ({ ...one, numbers: one.values.map((value) => (value === null ? null : Number(value))) }));
    Object.assign(this, data, { title, isBars: kind === "bars", format, tick, choose, isFromZero, series });
    if (!series.some(({ name }) => name === this.choice)) this.choice = series[0]?.name; // stays, whatever comes first later
    this.draw();
    return this.figure;
  }

  /** The series that are drawn. */
  get visible() {
    return this.choose ? this.series.filter(({ name }) => name === this.choice) : this.series;
  }

  /** Show the values from one index to another; without any, all. */
  zoom(first = 0, last = this.labels.length - 1) {
    const ids = this.stamps ?? this.labels;
    const isAll = first <= 0 && last >= ids.length - 1;
    this.bounds = isAll ? null : [ids[Math.max(0, first)], ids[Math.min(ids.length - 1, last)]];
    this.draw();
  }

  /** What the value at an index says: its label, and a text for each series. */
  told(index) {
    const values = this.visible.map(({ name, tone, values: all }) => ({ name, tone, text: all[index] === null ? "no data" : this.format(all[index]) }));
    const isSummed = this.isBars && this.visible.length > 1 && this.visible.every(({ values: all }) => typeof all[index] === "number");
    if (isSummed) values.push({ name: "total", tone: null, text: this.format(this.view.highest(index)) });
    return { label: this.labels[index], values };
  }

  draw() {
    const [first, last] = this.#range();
    this.view = viewOf(this, first, last);
    const { over, ticks, indices } = this.view;
    this.#drawCaption();
    redraw(this.area, picture(this.view), this.#ticks(), over.map((index) => placed("span.over", "left", this.view.centre(index), "▲")));
    redraw(this.notes, this.#notes(over, ticks.at(-1)));
    const said = this.bounds ? `${this.labels[first]} to ${this.labels[last]}` : "";
    if (this.status.textContent !== said) this.status.textContent = said;
    this.whole.hidden = !this.bounds;
    this.closer.hidden = this.labels.length < FEWEST_TO_ZOOM;
    this.closer.disabled = indices.length < FEWEST_TO_ZOOM;
    this.table.update();
    this.reading.update();
  }

  #range() {
    const ids = this.stamps ?? this.labels;
    const [first, last] = (this.bounds ?? []).map((one) => ids.indexOf(one));
    if (!(last > 0)) this.bounds = null; // it is not among the values any more
    return this.bounds ? [Math.max(0, first), last] : [0, ids.length - 1];
  }

  #drawCaption() {
    const names = this.series.map(({ name }) => name);
    const drawn = JSON.stringify([this.title, names, this.choose]);
    if (drawn === this.drawnCaption) return; // a choice that is open stays open
    this.drawnCaption = drawn;
    const choices = () => select("series", names.map((name) => [name, name]), this.choice, { "aria-label": `${this.choose} of ${this.title}`, onchange: (event) => ((this.choice = event.target.value), this.draw()) });
    const legend = () => h("span.legend", {}, this.series.map(({ name, tone }) => h(`span.tone-${tone}`, {}, name)));
    redraw(this.caption, h("span", {}, this.title), names.length > 1 && (this.choose ? choices() : legend()));
  }

  #ticks() {
    const { ticks, heightOf, columns } = this.view;
    return [
      ticks.map((value) => placed("span.tick.row", "bottom", heightOf(value), this.tick(value))),
      columns.map(({ share, label }) => placed("span.tick.column", "left", share, label)),
      this.zone && h("span.tick.zone", {}, this.zone),
      !this.view.hasData && h("span.without", {}, "No data in this time"),
    ];
  }

  #notes(over, end) {
    const highest = this.format(Math.max(...over.map(this.view.highest)));
    const words = over.length === 1 ? `1 value is higher: ${highest} (${this.labels[over[0]]})` : `${over.length} values are higher, up to ${highest}`;
    this.cutSwitch.textContent = this.isUncut ? "Cut the axis" : "Show in full";
    return [
      this.view.isCuttable && h("p", {}, this.isUncut ? "Few values are far above the others. " : [h("span.warn-text", { "aria-hidden": "true" }, "▲ "), `Axis cut at ${this.tick(end)}. ${words}. `], this.cutSwitch),
      this.isBars && this.view.hasGaps && h("p", {}, "Grey: no data."),
    ];
  }
}

/** Where everything stands, for values from `first` to `last`. Places are shares of the area, from 0 to 1. */
function viewOf({ visible, isBars, isUncut, isFromZero, format, labels, stamps }, first, last) {
  const indices = Array.from({ length: last - first + 1 }, (_, at) => first + at);
  const xs = stamps ?? labels.map((_, at) => at);
  const step = Math.min(...indices.slice(1).map((at) => xs[at] - xs[at - 1]).filter((gap) => gap > 0));
  const width = isBars ? (Number.isFinite(step) ? step : 1) : 0;
  const [from, to] = [xs[first], xs[last] + width];
  const share = (x) => (to > from ? (x - from) / (to - from) : 0.5);
  const centre = (index) => share(xs[index] + width / 2);
  const shift = width >= DAY_MS ? width / 2 : 0; // a day's name stands below its bar
  const columns = stamps
    ? timeTicks(from, to - shift).map(({ at, label }) => ({ share: share(at + shift), label }))
    : labelTicks(indices).map((index) => ({ share: centre(index), label: labels[index] }));
  return { series: visible, isBars, indices, centre, width: width / (to - from || 1), columns, ...heights({ visible, isBars, isUncut, isFromZero, format, indices }) };
}

function heights({ visible, isBars, isUncut, isFromZero, format, indices }) {
  const known = (index) => visible.map(({ numbers }) => numbers[index]).filter((value) => value !== null);
  const highest = (index) => (isBars ? known(index).reduce((sum, value) => sum + value, 0) : Math.max(...known(index)));
  const withData = indices.filter((index) => known(index).length > 0);
  const values = withData.map(highest);
  const cut = cutOf(values);
  const lowest = Math.min(...withData.flatMap(known));
  const low = withData.length === 0 ? 0 : isFromZero ? Math.min(0, lowest) : lowest;
  const high = cut !== null && !isUncut ? cut : Math.max(low, ...values);
  const ticks = valueTicks(low, high > low ? high : low + 1, format === count);
  const [bottom, top] = [ticks[0], ticks.at(-1)];
  return {
    ticks,
    heightOf: (value) => (value - bottom) / (top - bottom),
    highest,
    over: withData.filter((index) => highest(index) > top),
    isCuttable: cut !== null,
    hasData: withData.length > 0,
    hasGaps: withData.length < indices.length,
  };
}

function placed(tag, side, share, text) {
  const element = h(tag, {}, text);
  element.style[side] = `${(share * 100).toFixed(2)}%`;
  return element;
}

/** How much of a limit is used, as a bar: `usageBar("REQUEST per MINUTE of acme/chat", 12, 60)`. `figures`: both as text. */
export function usageBar(label, used, threshold, figures = `${count(used)} of ${count(threshold)}`) {
  const share = threshold > 0 ? Math.min(1, used / threshold) : 1;
  const tone = share >= 1 ? "full" : share >= 0.8 ? "near" : "free";
  const filled = h(`span.filled.${tone}`);
  filled.style.width = `${(share * 100).toFixed(1)}%`;
  const text = `${figures} (${percent(used, threshold)})`;
  return h(
    "div.usage",
    {},
    h("div.bar", { role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": threshold, "aria-valuenow": Math.min(used, threshold), "aria-valuetext": text }, filled),
    h("span.used", { "aria-hidden": "true" }, text),
  );
}
