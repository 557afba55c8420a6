// The log of a deployment or a job: its newest lines, older ones on demand, new ones as they come.

import { send } from "./api.mjs";
import { h } from "./dom.mjs";
import { actionButton, field, form, select } from "./form.mjs";
import { keepFresh } from "./live.mjs";

const EVERY_S = 2;
const PAGE = 500;
const MOST_SHOWN = 5000;
const MOST_PAGES = 5; // of one look for new lines
const LATE_MS = 10_000; // lines arrive some seconds after their time
const TONES = { ERROR: "bad-text", WARNING: "warn-text" };
const clock = new Intl.DateTimeFormat("en-GB", { dateStyle: "short", timeStyle: "medium", timeZone: "UTC" });

/** A log that `POST path` answers. `preset`: what to search for first, such as `{request_id}`. */
export function logView(path, preset = {}) {
  const shown = h("div.log", { tabindex: 0, role: "region", "aria-label": "Log lines" });
  const lines = new ShownLines(shown);
  const text = h("input", { name: "search_pattern", maxlength: 255, spellcheck: "false" });
  const level = select("min_level", [["", "all"], ["INFO", "INFO and above"], ["WARNING", "WARNING and above"], ["ERROR", "ERROR"]]);
  const requestId = h("input", { name: "request_id", maxlength: 255, spellcheck: "false", value: preset.request_id ?? "" });
  const replica = h("input", { name: "replica", maxlength: 255, spellcheck: "false" });
  const search = form("Search", [field("Text", text), field("Level", level), field("Request id", requestId), field("Replica", replica)], restart, { inline: true });
  const follow = h("button", { type: "button", "aria-pressed": "true", onclick: () => toggle() }, "Follow");
  const state = h("div.soft");
  let filter = read();
  let hasOlder = false;
  let isBegun = false;

  function read() {
    const asked = { search_pattern: text.value, min_level: level.value, request_id: requestId.value.trim(), replica: replica.value.trim() };
    return Object.fromEntries(Object.entries(asked).filter(([, value]) => value));
  }

  async function restart() {
    filter = read();
    isBegun = false;
    await load();
  }

  function toggle() {
    follow.setAttribute("aria-pressed", String(follow.getAttribute("aria-pressed") !== "true"));
  }

  const ask = async (window) => (await send("POST", path, { ...filter, ...window })).logs;

  async function begin() {
    const mine = filter;
    const newest = await ask({ direction: "desc", limit: PAGE });
    if (mine !== filter) return; // another search has begun
    lines.clear();
    lines.add(newest.reverse());
    hasOlder = newest.length === PAGE;
    older.hidden = !hasOlder;
    isBegun = true;
    lines.toEnd();
  }

  async function load() {
    if (!isBegun) await begin();
    else if (follow.getAttribute("aria-pressed") === "true") await catchUp();
    return lines.count;
  }

  async function catchUp() {
    const mine = filter;
    const isAtEnd = lines.isAtEnd();
    let start = lines.newestMs() === null ? null : lines.newestMs() - LATE_MS;
    for (let at = 0; at < MOST_PAGES; at += 1) {
      const found = await ask({ direction: "asc", limit: 1000, start_epoch_millis: start });
      if (mine !== filter) return;
      lines.add(found);
      if (found.length < 1000) break;
      start = Math.max(msOf(found.at(-1)), start + 1);
    }
    lines.trim();
    if (isAtEnd) lines.toEnd();
  }

  async function addOlder() {
    const found = await ask({ direction: "desc", limit: 1000, end_epoch_millis: lines.oldestMs() });
    hasOlder = lines.add(found.reverse()) > 0 && lines.count < MOST_SHOWN;
    older.hidden = !hasOlder;
  }

  const older = actionButton("Older lines", addOlder);
  older.hidden = true;
  keepFresh(state, EVERY_S, load, (count) => (count ? null : h("p.soft", {}, "No line matches. Lines appear within seconds.")));
  return h("div", {}, h("div.toolbar", {}, search, follow), h("p", {}, older), shown, state);
}

/** The lines that are drawn, in order of time, each once. */
class ShownLines {
  constructor(container) {
    this.container = container;
    this.clear();
  }

  clear() {
    this.lines = [];
    this.known = new Map(); // how often a line is drawn: a log may hold the same one twice
    this.container.replaceChildren();
  }

  get count() {
    return this.lines.length;
  }

  /** Draw those that are not drawn yet; `found` holds all equal lines, or none. Answers how many were new. */
  add(found) {
    const met = new Map();
    let added = 0;
    for (const line of found) {
      const key = JSON.stringify(line);
      met.set(key, (met.get(key) ?? 0) + 1);
      if (met.get(key) <= (this.known.get(key) ?? 0)) continue;
      this.known.set(key, met.get(key));
      this.insert({ at: BigInt(line.timestamp), key, line, element: lineElement(line) });
      added += 1;
    }
    return added;
  }

  insert(one) {
    let place = this.lines.length;
    while (place > 0 && this.lines[place - 1].at > one.at) place -= 1;
    this.container.insertBefore(one.element, this.lines[place]?.element ?? null);
    this.lines.splice(place, 0, one);
  }

  trim() {
    for (const { key, element } of this.lines.splice(0, Math.max(0, this.lines.length - MOST_SHOWN))) {
      element.remove();
      this.known.delete(key);
    }
  }

  newestMs() {
    return this.lines.length ? msOf(this.lines.at(-1).line) : null;
  }

  oldestMs() {
    return this.lines.length ? msOf(this.lines[0].line) : null;
  }

  isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.container;
    return scrollHeight - scrollTop - clientHeight < 30;
  }

  toEnd() {
    this.container.scrollTop = this.container.scrollHeight;
  }
}

const msOf = ({ timestamp }) => Number(BigInt(timestamp) / 1_000_000n);

function lineElement(line) {
  const at = new Date(msOf(line));
  return h(
    "div",
    { title: line.request_id ? `request ${line.request_id}` : null },
    h("span.soft", {}, `${clock.format(at)}.${String(at.getMilliseconds()).padStart(3, "0")} UTC `),
    h("span", { class: TONES[line.level] ?? null }, `${line.level} `),
    line.replica && h("span.soft", {}, `${line.replica} `),
    line.message,
  );
}
