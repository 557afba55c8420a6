// What a change changed: the members of a resource that differ before and after it.

import { h } from "../dom.mjs";

const NAMES = ["slug", "id", "prefix", "url", "name", "type"]; // members that tell the items of a list apart
const MOST_SHOWN = 12;

/** `[{path, before, after}]`, by path; texts of JSON, null on the side that lacks the member. */
export function differences(before, after) {
  const [old, present] = [membersOf(before), membersOf(after)];
  return [...new Set([...old.keys(), ...present.keys()])]
    .map((path) => ({ path, before: old.get(path) ?? null, after: present.get(path) ?? null }))
    .filter((one) => one.before !== one.after);
}

/** The differences as a list: `−` before what went, `+` before what came. */
export function differenceList(before, after) {
  const found = differences(before, after);
  if (found.length === 0) return h("p.soft", {}, "No member differs.");
  const item = ({ path, before: old, after: present }) => h("li", {}, side("del", "−", "removed", path, old), side("ins", "+", "added", path, present));
  const left = found.length - MOST_SHOWN;
  return h("ul.difference", {}, found.slice(0, MOST_SHOWN).map(item), left > 0 && h("li", {}, `… ${left} more: see the whole entry`));
}

function side(tag, sign, said, path, value) {
  return value !== null && h(tag, {}, h("span", { "aria-hidden": "true" }, `${sign} `), h("span.hidden", {}, `${said}: `), `${path}: ${value}`);
}

/** Every value by its path. Items of lists are known by what names them, so that one that moved is no difference. */
function membersOf(value, path = "", found = new Map()) {
  if (value === null && !path) return found; // made, or deleted
  if (Array.isArray(value)) value.forEach((item, at) => membersOf(item, `${path}[${nameOf(item) ?? at}]`, found));
  else if (value !== null && typeof value === "object") {
    for (const [name, member] of Object.entries(value)) membersOf(member, path ? `${path}.${name}` : name, found);
  } else if (value !== undefined && path) found.set(path, JSON.stringify(value));
  return found;
}

function nameOf(item) {
  if (item === null || typeof item !== "object") return JSON.stringify(item);
  const name = NAMES.find((one) => typeof item[one] === "string");
  return name && item[name];
}
