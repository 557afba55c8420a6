// Draws the lines and bars of a chart. All places are shares of its area, from 0 to 1; text stands beside the picture.

import { svg } from "./dom.mjs";

const WIDTH = 600;
const HEIGHT = 140;
const clamped = (share) => Math.min(1, Math.max(0, share));
const xOf = (share) => (share * WIDTH).toFixed(1);
const yOf = (share) => ((1 - clamped(share)) * HEIGHT).toFixed(1);

/**
 * The picture. `view`: `series` with their `numbers`; `indices`, those that are shown; `centre(at)` and `width`, where
 * the value at an index stands and how wide it is; `heightOf(value)`; `ticks` and `columns`, where the grid's lines are.
 */
export function picture(view) {
  const attributes = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" };
  return svg(
    "svg",
    attributes,
    view.columns.map(({ share }) => svg("line.grid", { x1: xOf(share), x2: xOf(share), y1: 0, y2: HEIGHT })),
    view.ticks.map((value) => svg("line.grid", { x1: 0, x2: WIDTH, y1: yOf(view.heightOf(value)), y2: yOf(view.heightOf(value)) })),
    svg("line.axis", { x1: 0, x2: WIDTH, y1: yOf(view.heightOf(0)), y2: yOf(view.heightOf(0)) }),
    view.isBars ? bars(view) : view.series.map((one) => line(one, view)),
  );
}

function line({ numbers, tone }, { indices, centre, heightOf }) {
  let path = "";
  let alone = ""; // points without a neighbour, which no line would show
  indices.forEach((index, at) => {
    if (numbers[index] === null) return;
    const hasNext = (numbers[indices[at + 1]] ?? null) !== null;
    const begins = (numbers[indices[at - 1]] ?? null) === null;
    const point = `${xOf(centre(index))} ${yOf(heightOf(numbers[index]))}`;
    if (begins && !hasNext) alone += `M${point}h0`;
    else path += `${begins ? "M" : "L"}${point}`;
  });
  return [svg(`path.line.tone-${tone}`, { d: path }), alone && svg(`path.point.tone-${tone}`, { d: alone })];
}

function bars({ series, indices, centre, width, heightOf }) {
  const drawn = [];
  for (const index of indices) {
    const at = { x: xOf(centre(index) - width * 0.4), width: xOf(width * 0.8) };
    if (series.every(({ numbers }) => numbers[index] === null)) drawn.push(svg("rect.gap", { ...at, y: 0, height: HEIGHT }));
    let base = 0;
    for (const { numbers, tone } of series) {
      const value = numbers[index] ?? 0;
      const [top, bottom] = [yOf(heightOf(base + value)), yOf(heightOf(base))];
      if (value > 0) drawn.push(svg(`rect.tone-${tone}`, { ...at, y: top, height: bottom - top }));
      base += value;
    }
  }
  return drawn;
}
