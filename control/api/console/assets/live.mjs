// Keeps a part of a page up to date while it is looked at.

import { Problem } from "./api.mjs";
import { h, redraw } from "./dom.mjs";
import { clockTime } from "./format.mjs";
import { problemNotice } from "./notice.mjs";

/**
 * Call `load` now and every `seconds`, and draw what `build(loaded)` makes into `container`. Pauses while the tab is
 * hidden. Answers `{now}`: load again at once. After a failure the last figures stay, and a line says how old they are.
 */
export function keepFresh(container, seconds, load, build) {
  const state = h("p.freshness", { role: "status" });
  const content = h("div");
  container.append(content, state);
  let timer = null;
  let current = null; // the load that counts; one that was overtaken draws nothing
  let loadedAt = null;

  async function now() {
    clearTimeout(timer);
    const mine = Symbol("load");
    current = mine;
    try {
      const loaded = await load();
      if (current !== mine) return;
      redraw(content, build(loaded));
      loadedAt = new Date();
      redraw(state);
    } catch (error) {
      if (current !== mine) return;
      if (!(error instanceof Problem)) throw error;
      if (loadedAt) redraw(state, `${error.message} These figures are of ${clockTime(loadedAt)}; trying again.`);
      else redraw(content, problemNotice(error));
    }
    timer = setTimeout(tick, seconds * 1000);
  }

  const tick = () => whenVisible(now);

  now();
  return { now };
}

/** Call `act` now, or once somebody looks at the tab again. */
export function whenVisible(act) {
  if (document.hidden) document.addEventListener("visibilitychange", () => whenVisible(act), { once: true });
  else act();
}
