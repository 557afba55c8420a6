// Charts as SVG, each with a table of the same figures for those who cannot see it; and the bars of limits.

import { h, svg } from "./dom.mjs";
import { clockTime, count, percent } from "./format.mjs";

const WIDTH = 600;
const HEIGHT = 140;
const DAY_MS = 86_400_000;

/**
 * A figure of values over time. `series`: `{name, tone, values}`; `tone` is "a" to "d" or "bad", a value may be null.
 * `times`: a Date per value. `kind`: "bars" are stacked, "lines" are not. `format`: a value as text.
 */
export function timeChart(title, times, series, { kind = "lines", format = count, key = title } = {}) {
  const last = times.at(-1) ?? new Date();
  const withDay = last - (times[0] ?? last) > DAY_MS;
  const labels = times.map((at) => clockTime(at, withDay));
  return chart(title, labels, series, { kind, format, key });
}

/** The same over anything that has a label per value, such as the steps of a training job. */
export function chart(title, labels, series, { kind = "lines", format = count, key = title } = {}) {
  const range = rangeOf(series, kind, labels.length);
  const drawn = kind === "bars" ? bars(series, labels.length, range) : series.map((one) => line(one, labels.length, range));
  const marker = svg("line.marker", { y1: 0, y2: HEIGHT, hidden: true });
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" },
    svg("line.axis", { x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }),
    drawn,
    marker,
  );
  const pointed = h("p.pointed", { "aria-hidden": "true" });
  const plot = h("div.plot", {}, h("span.top", { "aria-hidden": "true" }, format(range.high)), picture);
  followPointer(plot, marker, pointed, labels, series, format);
  return h(
    "figure.chart",
    {},
    h("figcaption", {}, title, series.length > 1 && legend(series)),
    plot,
    h("div.ends", { "aria-hidden": "true" }, h("span", {}, labels[0] ?? ""), pointed, h("span", {}, labels.at(-1) ?? "")),
    asTable(title, labels, series, format, key),
  );
}

function rangeOf(series, kind, length) {
  const sums = Array.from({ length }, (_, at) => series.reduce((sum, one) => sum + (one.values[at] ?? 0), 0));
  const values = kind === "bars" ? sums : series.flatMap((one) => one.values).filter((value) => value !== null);
  const low = Math.min(0, ...values);
  return { low, high: Math.max(...values, low + (values.length && Math.max(...values) > low ? 0 : 1)) };
}

const heightOf = (value, { low, high }) => HEIGHT - ((value - low) / (high - low)) * (HEIGHT - 4);

function line({ values, tone }, length, range) {
  const step = WIDTH / Math.max(1, length - 1);
  let path = "";
  let isDrawing = false;
  values.forEach((value, at) => {
    if (value !== null) path += `${isDrawing ? "L" : "M"}${(at * step).toFixed(1)} ${heightOf(value, range).toFixed(1)}`;
    if (value !== null && !isDrawing && (values[at + 1] ?? null) === null) path += "h2"; // a point alone is seen too
    isDrawing = value !== null;
  });
  return svg(`path.line.tone-${tone}`, { d: path });
}

function bars(series, length, range) {
  const step = WIDTH / Math.max(1, length);
  const drawn = [];
  for (let at = 0; at < length; at += 1) {
    let base = 0;
    for (const { values, tone } of series) {
      const value = values[at] ?? 0;
      if (value === 0) continue;
      const y = heightOf(base + value, range);
      const height = heightOf(base, range) - y;
      drawn.push(svg(`rect.tone-${tone}`, { x: at * step + step * 0.1, y, width: step * 0.8, height }));
      base += value;
    }
  }
  return drawn;
}

function legend(series) {
  return h("span.legend", {}, series.map(({ name, tone }) => h(`span.tone-${tone}`, {}, name)));
}

function followPointer(plot, marker, pointed, labels, series, format) {
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const at = Math.round(((event.clientX - box.left) / box.width) * (labels.length - 1));
    if (!(at in labels)) return;
    const x = (at * WIDTH) / Math.max(1, labels.length - 1);
    marker.setAttribute("x1", x);
    marker.setAttribute("x2", x);
    marker.removeAttribute("hidden");
    const values = series.map(({ name, values: all }) => `${name} ${all[at] === null ? "–" : format(all[at])}`);
    pointed.textContent = `${labels[at]}: ${values.join(", ")}`;
  });
  plot.addEventListener("pointerleave", () => {
    marker.setAttribute("hidden", "");
    pointed.textContent = "";
  });
}

function asTable(title, labels, series, format, key) {
  const details = h("details.figures", { "data-key": `figures ${key}` }, h("summary", {}, "Figures", h("span.hidden", {}, ` of ${title}`)));
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("table")) return;
    const head = h("tr", {}, h("th", { scope: "col" }, "at"), series.map(({ name }) => h("th.number", { scope: "col" }, name)));
    const rows = labels.map((label, at) =>
      h("tr", {}, h("th", { scope: "row" }, label), series.map(({ values }) => h("td.number", {}, values[at] === null ? "–" : format(values[at])))),
    );
    details.append(h("div.scroll", { tabindex: 0, role: "region", "aria-label": `Figures of ${title}` }, h("table", {}, h("caption.hidden", {}, `Figures of ${title}`), h("thead", {}, head), h("tbody", {}, rows))));
  });
  return details;
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
