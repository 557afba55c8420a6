// Groups: the tree of those who may call slugs. `?id=` one group, with `&edit=1` its form; `?new=1` (`&parent=`) a new one.

import { read, route } from "../api.mjs";
import { h } from "../dom.mjs";
import { count } from "../format.mjs";
import { announce, nothing, problemNotice } from "../notice.mjs";
import { MonthUsage, Tree, groupLink, inParts, ownerBadge } from "./groups_data.mjs";
import { testBadge } from "./test_calls.mjs";

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
  main.append(
    h("div.toolbar", {}, h("a.button.primary", { href: "/console/groups?new=1", needs: "policy" }, "New group")),
    h("p.soft", {}, "Beside each group: calls of this month (UTC), with all groups below it. To find one, type a part of its id or name into the search field above."),
    list,
  );
  await drawTree(list);
}

async function drawTree(container) {
  const tree = new Tree();
  const month = new MonthUsage({ limit: PAGE, effective_models: "false" });
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
    top.replaceChildren(...branches(tree.roots, { tree, opened, month }));
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
      const page = await read("/v1/gateway/groups", cursor ? { cursor } : { limit: PAGE, effective_models: "false" });
      if (cursor === null && page.items.length <= OPEN_AT_FIRST) for (const group of page.items) opened.add(group.id);
      tree.add(page.items);
      cursor = page.pagination.cursor;
      show();
      month.readPage().catch((error) => said.replaceChildren(problemNotice(error)));
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

/** `view`: the `tree`, the ids of the groups that are `opened`, and the usage of the `month`. */
function branches(groups, view) {
  return inParts(groups, (part) => part.map((group) => branch(group, view)), (button) => h("li", {}, button));
}

/** A group and, when it is open, those below it. */
function branch(group, view) {
  const { tree, opened } = view;
  const children = tree.children(group.id);
  const list = h("ul");
  const name = group.metadata.external_entity_id;
  const toggle =
    children.length > 0 &&
    h("button.plain", { type: "button", "aria-label": `${count(children.length)} below ${name}`, "aria-expanded": "false", onclick: () => set(!opened.has(group.id)) }, "▸");
  const item = h("li", {}, h("div.row", {}, toggle || h("span.leaf", { "aria-hidden": "true" }, "·"), ...describe(group, children, view.month)), toggle && list);

  function set(isOpen) {
    if (isOpen) opened.add(group.id);
    else opened.delete(group.id);
    list.replaceChildren(...(isOpen ? branches(children, view) : []));
    list.hidden = !isOpen;
    toggle.setAttribute("aria-expanded", String(isOpen));
    toggle.textContent = isOpen ? "▾" : "▸";
  }

  if (toggle) set(opened.has(group.id));
  return item;
}

function describe(group, children, month) {
  const { name } = group.metadata;
  const slugs = group.models.length;
  return [
    groupLink(group),
    name && h("bdi", {}, name),
    h("span.soft", {}, `${count(slugs)} ${slugs === 1 ? "slug" : "slugs"}${children.length ? `, ${count(children.length)} below` : ""}`),
    group.hierarchy.parent_group_id === null && children.length > 0 && h("span.badge", {}, group.hierarchy.limit_enforcement.toLowerCase()),
    ownerBadge(group),
    testBadge(group.metadata.external_entity_id),
    month.beside(group, children.length > 0),
  ];
}
