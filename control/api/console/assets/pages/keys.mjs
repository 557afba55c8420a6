// Keys: all of them, and with `?group_id=` those of a group. A key is shown once, when it is created.

import { read, route } from "../api.mjs";
import { h } from "../dom.mjs";
import { pagedList, table } from "../table.mjs";
import { keyActions } from "./keys_actions.mjs";
import { NAMES, RESTRICTIONS, STATE, TIMES, eventsLink, mintForm } from "./keys_shared.mjs";

/** Draws the page. */
export async function draw(main, { session, query }) {
  const groupId = query.get("group_id");
  if (groupId) {
    const group = await read(route`/v1/gateway/groups/${groupId}`);
    main.append(
      h("p", {}, h("a", { href: "/console/keys" }, "← All keys")),
      h("h2", {}, "Keys of ", groupLink(group)),
      h("p", {}, "These keys call the slugs of the group. They share its limits."),
      keysOf(group, session),
    );
    return;
  }
  const { drawAllKeys } = await import("./keys_all.mjs");
  await drawAllKeys(main, session, query);
}

function groupLink(group) {
  return h("a", { href: `/console/groups?id=${encodeURIComponent(group.id)}` }, h("bdi", {}, group.metadata.external_entity_id));
}

/** The list of keys of a group, and the form that makes one. */
export function keysOf(group, session) {
  const path = route`/v1/gateway/groups/${group.id}/api_keys`;
  const shown = h("div");
  const list = pagedList(path, () => ({}), (items) => keyTable(items, { path, session, place: shown, reload: list.reload }), "No keys yet. Create one with the form above.");
  list.reload();
  return h("div", {}, mintForm(path, null, shown, list.reload), shown, list.element);
}

function keyTable(items, context) {
  const columns = [
    ...NAMES,
    STATE,
    RESTRICTIONS,
    ...TIMES,
    { head: "Actions", cell: (key) => [eventsLink(key), " ", keyActions(key, context)] },
  ];
  return table("Keys of the group", columns, items, { key: "keys" });
}
