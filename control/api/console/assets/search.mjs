// The search field of the header: groups, slugs, keys and requests by a part of their names. `/` focuses it.

import { Problem, read, withQuery } from "./api.mjs";
import { h, newId } from "./dom.mjs";
import { whenVisible } from "./live.mjs";

const PAUSE_MS = 200; // after a key, before the API is asked
const LABEL = "Find anything";
const HINT = "Groups, slugs and keys by a part of their names, requests by their id";
const KINDS = [
  ["groups", "Groups", (one) => [withQuery("/console/groups", { id: one.id }), one.external_entity_id, one.name]],
  ["slugs", "Slugs", (one) => [withQuery("/console/endpoints", { id: one.endpoint_id }), one.slug, null]],
  ["keys", "Keys", (one) => [withQuery("/console/keys", { q: one.prefix }), one.prefix, [one.name, one.group?.external_entity_id ?? "workspace"].filter(Boolean).join(" · ")]],
  ["requests", "Requests", (one) => [withQuery("/console/requests", { request_id: one.request_id }), one.request_id, `${one.status}${one.slug ? ` · ${one.slug}` : ""}`]],
];

/** The field with its list of matches. */
export function searchField() {
  const list = h("div", { id: newId(), role: "listbox", "aria-label": "Matches" });
  const said = h("p.soft", { role: "status" });
  const popup = h("div.matches", { hidden: true, onmousedown: (event) => event.preventDefault() }, list, said); // keeps the focus
  const input = h("input", {
    type: "search",
    role: "combobox",
    "aria-label": LABEL,
    "aria-expanded": "false",
    "aria-controls": list.id,
    "aria-autocomplete": "list",
    placeholder: "Search ( / )",
    title: HINT,
    autocomplete: "off",
    spellcheck: "false",
    maxlength: 128,
    oninput: () => later(),
    onfocus: () => later(),
    onblur: () => close(),
    onkeydown: (event) => onKey(event),
  });
  let options = [];
  let active = -1;
  let timer = null;
  let asking = null; // what stops the question that is under way
  let shownText = null; // what the options match
  let isChosen = false; // Enter came before the answer

  function later() {
    clearTimeout(timer);
    asking?.abort();
    if (!input.value.trim()) return close();
    timer = setTimeout(() => whenVisible(ask), PAUSE_MS);
  }

  async function ask() {
    clearTimeout(timer);
    asking?.abort();
    const text = input.value.trim();
    const mine = new AbortController();
    asking = mine;
    try {
      const found = await read("/v1/gateway/search", { q: text }, { signal: mine.signal });
      if (asking === mine && document.activeElement === input) show(text, found);
    } catch (error) {
      if (error.name === "AbortError" || asking !== mine) return;
      if (!(error instanceof Problem)) throw error;
      isChosen = false;
      draw([], error.message);
    }
  }

  function show(text, found) {
    shownText = text;
    const sections = KINDS.filter(([kind]) => found[kind].length).map(([kind, title, describe]) => section(title, found[kind].map(describe)));
    const more = KINDS.filter(([kind]) => found.more.includes(kind)).map(([, title]) => title.toLowerCase());
    draw(sections, more.length ? `There are more ${more.join(" and ")}: type more of the name.` : sections.length ? "" : "Nothing matches. A request is found by its whole id.");
    if (isChosen) choose();
  }

  function draw(sections, text) {
    list.replaceChildren(...sections);
    said.textContent = text;
    options = [...list.querySelectorAll("[role=option]")];
    popup.hidden = false;
    input.setAttribute("aria-expanded", "true");
    mark(options.length ? 0 : -1);
  }

  function mark(at) {
    active = at;
    for (const [place, option] of options.entries()) option.setAttribute("aria-selected", String(place === at));
    if (at < 0) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", options[at].id);
    options[at].scrollIntoView({ block: "nearest" });
  }

  function close() {
    clearTimeout(timer);
    asking?.abort();
    asking = null;
    shownText = null;
    isChosen = false;
    options = [];
    popup.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  /** Open the active match; what is typed since the last answer is asked for first. */
  function choose() {
    isChosen = shownText !== input.value.trim();
    if (isChosen) ask();
    else if (active >= 0) location.assign(options[active].dataset.address);
  }

  function onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && options.length) mark((active + step + options.length) % options.length);
    else if (event.key === "Enter" && input.value.trim()) choose();
    else if (event.key === "Escape" && !popup.hidden) close();
    else return;
    event.preventDefault();
  }

  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    event.preventDefault();
    input.focus();
    input.select();
  });
  return h("div.search", { role: "search" }, input, popup);
}

function section(title, matches) {
  const heading = newId();
  return h("div", { role: "group", "aria-labelledby": heading }, h("p.soft", { id: heading, role: "presentation" }, title), matches.map(option));
}

function option([address, name, note]) {
  const open = () => location.assign(address);
  return h("div", { id: newId(), role: "option", "aria-selected": "false", "data-address": address, onclick: open }, h("bdi", {}, name), note && h("bdi.soft", {}, note));
}

/** Whether a key belongs to what is focused: a field, or a dialog, which is above the header. */
function isTyping(target) {
  return document.querySelector("dialog[open]") !== null || target.closest?.("input, select, textarea, [contenteditable]");
}
