// The table of a chart's values, for those who cannot see the chart or want the exact figures. It is built when it is opened.

import { h, redraw } from "./dom.mjs";

/** `{element, update()}`. */
export function chartTable(chart, key) {
  const content = h("div");
  const element = h("details.figures", { "data-key": `table ${key}`, ontoggle: update }, h("summary", {}, "Table", h("span.hidden", {}, ` of ${key}`)), content);
  let region = null;

  function update() {
    if (!element.open) return;
    region ??= h("div.scroll", { tabindex: 0, role: "region", "data-key": `rows ${key}` });
    region.setAttribute("aria-label", `Table of ${key}`);
    redraw(region, rows(chart));
    redraw(content, region);
  }

  return { element, update };
}

function rows({ title, labels, series, format, zone }) {
  const head = h("tr", {}, h("th", { scope: "col" }, zone ? `Time (${zone})` : "At"), series.map(({ name }) => h("th.number", { scope: "col" }, name)));
  const text = (value) => (value === null ? "no data" : format(value));
  const body = labels.map((label, at) => h("tr", {}, h("th", { scope: "row" }, label), series.map(({ values }) => h("td.number", {}, text(values[at])))));
  return h("table", {}, h("caption.hidden", {}, `Values of ${title}`), h("thead", {}, head), h("tbody", {}, body));
}
