// Reads a chart: a tooltip at the pointer and by the arrow keys, read aloud as the value of a slider; and zoom by both.

import { h } from "./dom.mjs";

const LEAST_DRAG_PX = 8;
const clamped = (value, low, high) => Math.min(high, Math.max(low, value));

export class Reading {
  #chart;
  #index = null; // of the value that is read
  #tip = h("div.tip", { "aria-hidden": "true", hidden: true });
  #marker = h("div.marker", { hidden: true });
  #selection = h("div.selection", { hidden: true });
  #dragFrom = null; // where a drag began, as a share of the width
  #isPointed = false;

  constructor(chart, key, area) {
    this.#chart = chart;
    this.plot = h(
      "div.plot",
      {
        tabindex: 0,
        role: "slider",
        "data-key": `plot ${key}`,
        "aria-description": "Arrow keys read the values, plus zooms in, minus shows all.",
        onkeydown: (event) => this.#press(event),
        onfocus: () => this.plot.matches(":focus-visible") && this.#read(this.#index ?? Infinity),
        onblur: () => this.#isPointed || this.#leave(),
        onpointermove: (event) => this.#point(event),
        onpointerleave: (event) => (event.pointerType === "touch" ? (this.#isPointed = false) : this.#leave()), // a tap's stays
        onpointerdown: (event) => this.#beginDrag(event),
        ondblclick: () => chart.zoom(),
      },
      area,
      this.#marker,
      this.#selection,
      this.#tip,
    );
  }

  /** Show what is read, after the chart was drawn. */
  update() {
    const { indices } = this.#chart.view;
    this.plot.setAttribute("aria-label", `${this.#chart.title}: values`);
    this.plot.setAttribute("aria-valuemin", indices[0] ?? 0);
    this.plot.setAttribute("aria-valuemax", indices.at(-1) ?? 0);
    const isRead = this.#index !== null && !this.#marker.hidden;
    this.#tell(this.#index ?? Infinity);
    if (isRead) this.#read(this.#index);
  }

  /** Show half of the range, around what is read; the newest values if nothing is. */
  zoomIn() {
    const { indices } = this.#chart.view;
    const size = Math.max(2, Math.ceil(indices.length / 2));
    const middle = this.#index ?? indices.at(-1);
    const first = clamped(middle - Math.floor(size / 2), indices[0], indices.at(-1) - size + 1);
    if (size < indices.length) this.#chart.zoom(first, first + size - 1);
  }

  #tell(wanted) {
    const { indices } = this.#chart.view;
    if (indices.length === 0) return null;
    const index = clamped(wanted, indices[0], indices.at(-1));
    const { label, values } = this.#chart.told(index);
    this.plot.setAttribute("aria-valuenow", index);
    this.plot.setAttribute("aria-valuetext", `${label}: ${values.map(({ name, text }) => `${name} ${text}`).join(", ")}`);
    return { index, label, values };
  }

  #read(wanted) {
    const told = this.#tell(wanted);
    if (told === null) return;
    this.#index = told.index;
    const share = this.#chart.view.centre(told.index);
    this.#tip.replaceChildren(h("strong", {}, told.label), ...told.values.map(({ name, tone, text }) => h("div", {}, h(`span.swatch${tone ? `.tone-${tone}` : ""}`, {}, name), h("span", {}, text))));
    this.#tip.style.left = share < 0.5 ? `calc(${share * 100}% + .6rem)` : "auto";
    this.#tip.style.right = share < 0.5 ? "auto" : `calc(${(1 - share) * 100}% + .6rem)`;
    this.#marker.style.left = `${share * 100}%`;
    for (const one of [this.#tip, this.#marker]) one.hidden = false;
  }

  #leave() {
    this.#isPointed = false;
    this.#index = null;
    for (const one of [this.#tip, this.#marker]) one.hidden = true;
  }

  #shareAt(event) {
    const box = this.plot.getBoundingClientRect();
    return clamped((event.clientX - box.left) / box.width, 0, 1);
  }

  #nearest(share) {
    const { indices, centre } = this.#chart.view;
    const distance = (index) => Math.abs(centre(index) - share);
    return indices.reduce((best, index) => (distance(index) < distance(best) ? index : best), indices[0]);
  }

  #point(event) {
    this.#isPointed = true;
    this.#read(this.#nearest(this.#shareAt(event)));
  }

  #press(event) {
    const { indices } = this.#chart.view;
    const now = this.#index ?? indices.at(-1);
    const leap = Math.max(1, Math.round(indices.length / 10));
    const targets = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - leap, PageUp: now + leap, Home: indices[0], End: indices.at(-1) };
    const acts = { "+": () => this.zoomIn(), "=": () => this.zoomIn(), "-": () => this.#chart.zoom(), Escape: () => this.#escape() };
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in targets || event.key in acts)) return;
    event.preventDefault();
    if (event.key in acts) acts[event.key]();
    else this.#move(targets[event.key]);
  }

  /** Read another value; beyond the end of what is zoomed to, move that along. */
  #move(wanted) {
    const { indices } = this.#chart.view;
    const index = clamped(wanted, 0, this.#chart.labels.length - 1);
    const by = index < indices[0] ? index - indices[0] : Math.max(0, index - indices.at(-1));
    this.#index = index;
    if (by !== 0) this.#chart.zoom(indices[0] + by, indices.at(-1) + by);
    this.#read(index);
  }

  #escape() {
    this.#endDrag();
    if (this.#chart.bounds) this.#chart.zoom();
    else this.#leave();
  }

  #beginDrag(event) {
    if (event.button !== 0) return;
    this.#point(event);
    this.#dragFrom = this.#shareAt(event);
    this.listening = new AbortController(); // at the window: a drag may end outside of the chart
    const { signal } = this.listening;
    addEventListener("pointermove", (moved) => this.#drag(moved), { signal });
    addEventListener("pointerup", (lifted) => this.#drop(lifted), { signal });
    addEventListener("pointercancel", () => this.#endDrag(), { signal });
  }

  #drag(event) {
    const [from, to] = [this.#dragFrom, this.#shareAt(event)].sort((one, other) => one - other);
    this.#selection.hidden = false;
    this.#selection.style.left = `${from * 100}%`;
    this.#selection.style.width = `${(to - from) * 100}%`;
  }

  #drop(event) {
    const [from, to] = [this.#dragFrom, this.#shareAt(event)].sort((one, other) => one - other);
    this.#endDrag();
    if ((to - from) * this.plot.clientWidth < LEAST_DRAG_PX) return;
    const [first, last] = [this.#nearest(from), this.#nearest(to)];
    if (first < last) this.#chart.zoom(first, last);
  }

  #endDrag() {
    this.listening?.abort();
    this.#dragFrom = null;
    this.#selection.hidden = true;
  }
}
