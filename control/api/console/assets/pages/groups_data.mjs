// Groups as a tree. The API lists them oldest first, so a group never comes before the one above it.

import { read, readAll, route } from "../api.mjs";
import { h } from "../dom.mjs";
import { brief, count, money } from "../format.mjs";

const MOST = 5000;
const PART = 100;

/** The groups that were read: `add` more, ask for `children`, `descendants` and `roots`. */
export class Tree {
  constructor() {
    this.byId = new Map();
    this.roots = [];
    this.below = new Map();
    this.hasMore = false;
  }

  add(groups) {
    for (const group of groups) {
      this.byId.set(group.id, group);
      const parent = group.hierarchy.parent_group_id;
      if (parent === null) this.roots.push(group);
      else if (this.below.has(parent)) this.below.get(parent).push(group);
      else this.below.set(parent, [group]);
    }
  }

  children(id) {
    return this.below.get(id) ?? [];
  }

  descendants(id) {
    return this.children(id).flatMap((group) => [group, ...this.descendants(group.id)]);
  }
}

/** The usage of this month beside groups, read a page after the tree has drawn it. `query`: that of the tree's pages. */
export class MonthUsage {
  #query;
  #cursor = null;
  #months = new Map();
  #places = new Map(); // by group: where it is drawn
  #reading = Promise.resolve();

  constructor(query) {
    this.#query = { ...query, month: "true" };
  }

  /** What stands beside a group: empty until it is known. */
  beside(group, hasGroupsBelow) {
    const place = h("span.month");
    this.#places.set(group.id, [place, hasGroupsBelow]);
    this.#draw(group.id);
    return place;
  }

  /** Read the next page, behind those that are being read. */
  readPage() {
    this.#reading = this.#reading.then(() => this.#read());
    return this.#reading;
  }

  async #read() {
    const page = await read("/v1/gateway/groups", this.#cursor ? { cursor: this.#cursor } : this.#query);
    this.#cursor = page.pagination.cursor;
    for (const { id, month } of page.items) {
      this.#months.set(id, month);
      this.#draw(id);
    }
  }

  #draw(id) {
    const month = this.#months.get(id);
    const [place, hasGroupsBelow] = this.#places.get(id) ?? [];
    if (month === undefined || !place) return;
    if (month === null) return place.replaceChildren("usage: too much to add up here");
    const own = hasGroupsBelow && month.calls > 0 && `, of which its own ${sumsOf(month.own)}`;
    place.replaceChildren(month.calls ? sumsOf(month) : "no calls", own || "");
  }
}

/** "1,204 calls, 3.4M tokens, EUR 12.40" */
function sumsOf({ calls, input_tokens: input, output_tokens: output, cost }) {
  const tokens = input + output;
  const words = [`${brief(calls)} ${calls === 1 ? "call" : "calls"}`, `${brief(tokens)} ${tokens === 1 ? "token" : "tokens"}`];
  return [...words, ...Object.entries(cost ?? {}).map(([currency, amount]) => money(amount, currency))].join(", ");
}

/** The tree of the first 5000 groups; `hasMore` says whether there are others. */
export async function readTree(options = {}) {
  const { items, hasMore } = await readAll("/v1/gateway/groups", {}, MOST, options);
  const tree = new Tree();
  tree.add(items);
  tree.hasMore = hasMore;
  return tree;
}

/** The groups above `group`, its parent first. */
export async function readAncestors(group) {
  const found = [];
  for (let id = group.hierarchy.parent_group_id; id; id = found.at(-1).hierarchy.parent_group_id) {
    found.push(await read(route`/v1/gateway/groups/${id}`));
  }
  return found;
}

/**
 * The elements that `draw(part)` makes of the first 100 of `items`, and a button for 100 more: thousands take the browser
 * seconds. `wrap`: puts the button into what may stand there.
 */
export function inParts(items, draw, wrap = (button) => button, at = 0) {
  const end = at + PART;
  const shown = draw(items.slice(at, end));
  if (end >= items.length) return shown;
  const text = `Show more of ${count(items.length - end)} others`;
  function showMore() {
    const next = inParts(items, draw, wrap, end);
    more.replaceWith(...next);
    next[0].querySelector("a")?.focus();
  }
  const more = wrap(h("button", { type: "button", onclick: showMore }, text));
  return [...shown, more];
}

export const addressOf = (group) => `/console/groups?id=${encodeURIComponent(group.id)}`;

/** A link to a group. `<bdi>`: a name with marks of direction turns nothing but itself. */
export const groupLink = (group) => h("a", { href: addressOf(group) }, h("bdi", {}, group.metadata.external_entity_id));

/** Who owns a group or an endpoint by a policy file, or nothing. */
export function ownerBadge({ managed_by: owner }) {
  if (!owner) return null;
  return h(`span.badge${owner.drifted ? ".warn" : ""}`, {}, "policy file ", h("bdi", {}, owner.name), owner.drifted && ", changed since");
}

/** What to know before something that a policy file owns is changed here, or null. */
export function ownerWarning({ managed_by: owner }) {
  if (!owner) return null;
  return h(
    "div.notice.warn",
    {},
    h("p", {}, "The policy file ", h("strong", {}, h("bdi", {}, owner.name)), " owns this. What you change here is marked as drift, and the next apply of the file undoes it. Change the file instead if you can."),
    owner.drifted && h("p", {}, "It has been changed outside the file since the last apply."),
  );
}
