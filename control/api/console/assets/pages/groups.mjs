// Groups: the tree of those who may call slugs. `?id=` one group, with `&edit=1` its form; `?new=1` (`&parent=`) a new one.

import { read, route } from "../api.mjs";
import { h } from "../dom.mjs";
import { field, form } from "../form.mjs";
import { count } from "../format.mjs";
import { announce, nothing, problemNotice, remark } from "../notice.mjs";
import { Tree, addressOf, groupLink, inParts, ownerBadge } from "./groups_data.mjs";

const PAGE = 200;
const OPEN_AT_FIRST = 60;

/** Draws the page. */
export async function draw(main, { session, query }) {
  const id = query.get("id");
  if (query.has("new") || query.has("edit")) {
    const { drawEditor } = await import("./groups_form.mjs");
    return drawEditor(main, { id, parentId: query.get("parent") });
  }
  if (id) {
    const { drawGroup } = await import("./groups_detail.mjs");
    return drawGroup(main, await read(route`/v1/gateway/groups/${id}`), session);
  }
  const list = h("div");
  main.append(toolbar(), list);
  await drawTree(list);
}

function toolbar() {
  const entity = h("input", { name: "external_entity_id", type: "search", required: true, maxlength: 255, autocomplete: "off", spellcheck: "false" });
  const said = h("div");
  async function find() {
    said.replaceChildren();
    const { items } = await read("/v1/gateway/groups", { external_entity_id: entity.value.trim(), limit: 1 });
    if (items.length) return location.assign(addressOf(items[0]));
    said.replaceChildren(remark("bad", "No group has this external id. It must be typed in full."));
  }
  return h(
    "div",
    {},
    h("div.toolbar", {}, form("Open", field("External id", entity), find, { inline: true }), h("a.button.primary", { href: "/console/groups?new=1" }, "New group")),
    said,
  );
}

async function drawTree(container) {
  const tree = new Tree();
  const opened = new Set();
  const top = h("ul.tree", { "aria-label": "Groups" });
  const told = h("p.soft", { role: "status" });
  const more = h("button", { type: "button", hidden: true, onclick: () => load().then(() => announce(`${count(tree.byId.size)} groups are loaded`)) }, "Load more");
  const expand = h("button", { type: "button", onclick: () => openAll(true) }, "Expand all");
  const collapse = h("button", { type: "button", onclick: () => openAll(false) }, "Collapse all");
  const bar = h("div.toolbar", { hidden: true }, expand, collapse);
  const said = h("div");
  let cursor = null;

  function show() {
    top.replaceChildren(...branches(tree.roots, tree, opened));
    told.textContent = `${count(tree.byId.size)} ${tree.byId.size === 1 ? "group" : "groups"}${cursor ? ", and there are more" : ""}`;
    more.hidden = cursor === null;
    bar.hidden = tree.below.size === 0;
  }

  function openAll(isOpen) {
    opened.clear();
    if (isOpen) for (const id of tree.below.keys()) opened.add(id);
    show();
  }

  async function load() {
    more.disabled = true;
    said.replaceChildren();
    try {
      const page = await read("/v1/gateway/groups", cursor ? { cursor } : { limit: PAGE });
      if (cursor === null && page.items.length <= OPEN_AT_FIRST) for (const group of page.items) opened.add(group.id);
      tree.add(page.items);
      cursor = page.pagination.cursor;
      show();
    } catch (error) {
      said.replaceChildren(problemNotice(error));
    }
    more.disabled = false;
  }

  await load();
  if (tree.byId.size === 0 && !said.firstChild) {
    container.append(nothing("No groups yet. A group says which slugs its keys may call, and how much. ", h("a", { href: "/console/groups?new=1" }, "Create the first one"), "."));
    return;
  }
  container.append(bar, top, said, told, more);
}

function branches(groups, tree, opened) {
  return inParts(groups, (part) => part.map((group) => branch(group, tree, opened)), (button) => h("li", {}, button));
}

/** A group and, when it is open, those below it. */
function branch(group, tree, opened) {
  const children = tree.children(group.id);
  const list = h("ul");
  const name = group.metadata.external_entity_id;
  const toggle =
    children.length > 0 &&
    h("button.plain", { type: "button", "aria-label": `${count(children.length)} below ${name}`, "aria-expanded": "false", onclick: () => set(!opened.has(group.id)) }, "▸");
  const item = h("li", {}, h("div.row", {}, toggle || h("span.leaf", { "aria-hidden": "true" }, "·"), ...describe(group, children)), toggle && list);

  function set(isOpen) {
    if (isOpen) opened.add(group.id);
    else opened.delete(group.id);
    list.replaceChildren(...(isOpen ? branches(children, tree, opened) : []));
    list.hidden = !isOpen;
    toggle.setAttribute("aria-expanded", String(isOpen));
    toggle.textContent = isOpen ? "▾" : "▸";
  }

  if (toggle) set(opened.has(group.id));
  return item;
}

function describe(group, children) {
  const { name } = group.metadata;
  const slugs = group.models.length;
  return [
    groupLink(group),
    name && h("bdi", {}, name),
    h("span.soft", {}, `${count(slugs)} ${slugs === 1 ? "slug" : "slugs"}${children.length ? `, ${count(children.length)} below` : ""}`),
    group.hierarchy.parent_group_id === null && children.length > 0 && h("span.badge", {}, group.hierarchy.limit_enforcement.toLowerCase()),
    ownerBadge(group),
  ];
}
