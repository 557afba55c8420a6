// Keeps parts of a page up to date while they are looked at, and says at the top of the page how old they are.

import { Problem } from "./api.mjs";
import { h, redraw } from "./dom.mjs";
import { clockTime } from "./format.mjs";
import { problemNotice, problemText, remark } from "./notice.mjs";

const LATE_MS = 10_000; // an answer that takes longer may never come: figures are called old before the load fails
const parts = new Set();
const updated = h("p.freshness");
const stale = h("div.stale");

/**
 * Call `load` now and every `seconds`, and draw what `build(loaded)` makes into `container`. Pauses while the tab is
 * hidden or the container is not on the page. Answers `{now}`: load again at once. After a failure the last figures stay, and
 * the top of the page says how old they are.
 */
export function keepFresh(container, seconds, load, build) {
  const content = h("div");
  container.append(content);
  const part = new LivePart(content);
  let timer = null;
  let current = null; // the load that counts; one that was overtaken draws nothing

  async function now() {
    clearTimeout(timer);
    const mine = Symbol("load");
    current = mine;
    await part.follow(async () => {
      const loaded = await load();
      if (current === mine) redraw(content, build(loaded));
    }, () => current === mine);
    if (current === mine) timer = setTimeout(tick, seconds * 1000);
  }

  function tick() {
    if (content.isConnected) whenVisible(now);
    else timer = setTimeout(tick, seconds * 1000);
  }

  now();
  return { now };
}

/** Call `act` now, or once somebody looks at the tab again. */
export function whenVisible(act) {
  if (document.hidden) document.addEventListener("visibilitychange", () => whenVisible(act), { once: true });
  else act();
}

/** A part of the page that is loaded again and again. `loadedAt`: when, if it has figures already. */
export class LivePart {
  #trouble = null; // why the figures may be old

  constructor(element, loadedAt = null) {
    this.element = element;
    this.loadedAt = loadedAt;
  }

  get trouble() {
    return this.#trouble;
  }

  /** Run `load`, and say so while it is late and when it fails. `isCurrent`: whether its end still matters. */
  async follow(load, isCurrent = () => true) {
    parts.add(this);
    const late = setTimeout(() => isCurrent() && this.#fail(new Problem(0, "LATE", `Tollgate has not answered for ${LATE_MS / 1000} s.`)), LATE_MS);
    try {
      await load();
      if (!isCurrent()) return;
      this.loadedAt = new Date();
      this.#trouble = null;
      tell();
    } catch (error) {
      if (!isCurrent()) return;
      this.#fail(error);
      if (!(error instanceof Problem)) throw error;
    } finally {
      clearTimeout(late);
    }
  }

  #fail(error) {
    this.#trouble = error;
    if (this.loadedAt === null) redraw(this.element, problemNotice(error));
    tell();
  }
}

/** Say when the oldest part was loaded, and what is wrong if one is not up to date. */
function tell() {
  for (const one of parts) if (!one.element.isConnected) parts.delete(one);
  const loaded = [...parts].filter(({ loadedAt }) => loadedAt);
  const main = document.querySelector("main");
  if (loaded.length === 0 || !main) return;
  if (!updated.isConnected) main.querySelector("h1").after(updated, stale);
  const oldest = clockTime(Math.min(...loaded.map(({ loadedAt }) => loadedAt)));
  redraw(updated, `Updated ${oldest}`);
  const { trouble } = loaded.find((one) => one.trouble) ?? {};
  const words = trouble ? `${problemText(trouble)} The figures are of ${oldest} and may be out of date; trying again.` : "";
  if (stale.textContent !== words) redraw(stale, words && remark("bad", h("p", {}, words))); // it is read aloud once
}
