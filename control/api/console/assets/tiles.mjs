// Tiles: a row of figures at the top of a page, each as large as its tile has room.

import { h } from "./dom.mjs";

/** A row of tiles. */
export const tiles = (...children) => h("dl.figures-row", {}, ...children);

/** A figure with its name, and what there is to say of it. `exact`: the figure in full, where `value` is shortened. */
export function tile(name, value, note = null, exact = null) {
  const shown = h("div.value", { title: exact }, value);
  shown.style.setProperty("--chars", String(Math.max(1, value.length)));
  return h("div.figure", {}, h("dt", {}, name), h("dd", {}, shown, note && h("div.note", {}, note)));
}
