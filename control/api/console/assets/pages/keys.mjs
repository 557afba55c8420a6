// Keys: those of the workspace, and with `?group_id=` those of a group. A key is shown once, when it is created.

import { read, route, send } from "../api.mjs";
import { confirmed } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { copyable, field, form, select } from "../form.mjs";
import { ago } from "../format.mjs";
import { announce, remark } from "../notice.mjs";
import { pagedList, table } from "../table.mjs";

const TYPES = [
  ["WORKSPACE_MANAGE_ALL", "Manage everything"],
  ["WORKSPACE_INVOKE", "Call platform models"],
  ["WORKSPACE_EXPORT_METRICS", "Read metrics"],
];
const NAME_OF_TYPE = Object.fromEntries(TYPES);

/** Draws the page. */
export async function draw(main, { session, query }) {
  const groupId = query.get("group_id");
  const group = groupId && (await read(route`/v1/gateway/groups/${groupId}`));
  main.append(chooseGroup(group), group ? h("h2", {}, "Keys of ", groupLink(group)) : h("h2", {}, "Keys of the workspace"));
  main.append(
    group
      ? h("p", {}, "These keys call the slugs of the group. They share its limits.")
      : h("p", {}, "These keys manage the workspace or call its platform models. To call slugs, create a key of a group."),
  );
  main.append(keysOf(group, session));
}

function groupLink(group) {
  return h("a", { href: `/console/groups?id=${encodeURIComponent(group.id)}` }, group.metadata.external_entity_id);
}

function chooseGroup(group) {
  const entity = h("input", { name: "external_entity_id", required: true, maxlength: 255, autocomplete: "off", spellcheck: "false" });
  async function open() {
    const found = await read("/v1/gateway/groups", { external_entity_id: entity.value.trim(), limit: 1 });
    if (found.items.length) return location.assign(`/console/keys?group_id=${encodeURIComponent(found.items[0].id)}`);
    said.replaceChildren(remark("bad", "No group has this external id."));
  }
  const said = h("div");
  const search = form("Show its keys", field("External id of a group", entity), () => (said.replaceChildren(), open()), { inline: true });
  return h("div.card", {}, search, said, group && h("p", {}, h("a", { href: "/console/keys" }, "Keys of the workspace")));
}

/** The list of keys of a group, or with null of the workspace, and the form that makes one. */
export function keysOf(group, session) {
  const path = group ? route`/v1/gateway/groups/${group.id}/api_keys` : "/v1/api_keys";
  const shown = h("div");
  const list = pagedList(path, () => ({}), (items) => keyTable(items, group, revoke), "No keys yet. Create one with the form above.");

  async function create(body) {
    const made = await send("POST", path, body);
    showOnce(shown, made);
    await list.reload();
  }

  async function revoke(key) {
    const isOwn = key.prefix === session.prefix;
    const what = h(
      "div",
      {},
      h("p", {}, "Calls with ", h("code", {}, key.prefix), key.name && ` (${key.name})`, " are refused within a second. This cannot be undone."),
      h("p", {}, "Last used: ", ago(key.last_used_at), "."),
      isOwn && remark("warn", "You are logged in with this key. Revoking it logs you out."),
    );
    const isDone = await confirmed("Revoke this key?", what, "Revoke", () => send("DELETE", `${path}/${encodeURIComponent(key.prefix)}`));
    if (!isDone) return;
    if (isOwn) return location.reload();
    announce(`Revoked ${key.prefix}`);
    await list.reload();
  }

  list.reload();
  return h("div", {}, creationForm(group, create), shown, list.element);
}

function creationForm(group, create) {
  const name = h("input", { name: "name", maxlength: 255, autocomplete: "off" });
  const type = !group && select("type", TYPES, "WORKSPACE_INVOKE");
  async function submit() {
    await create({ ...(type && { type: type.value }), ...(name.value.trim() && { name: name.value.trim() }) });
    name.value = "";
  }
  return h("div.card", {}, form("Create a key", [field("Name (optional)", name), type && field("Permission", type)], submit, { inline: true, primary: true }));
}

/** Show a new key until its owner says that it is stored; it is nowhere else. */
function showOnce(place, made) {
  const warn = (event) => event.preventDefault(); // the browser asks before the page is left
  addEventListener("beforeunload", warn);
  const stored = h("button.primary", { type: "button", onclick: finish }, "I have stored it");
  const notice = h(
    "section.notice.warn",
    { tabindex: -1, "aria-label": "The new key" },
    h("p", {}, h("strong", {}, "Store this key now."), " Tollgate keeps no copy and cannot show it again."),
    copyable(made.api_key, "The new key"),
    h("p", {}, stored),
  );
  function finish() {
    removeEventListener("beforeunload", warn);
    notice.remove();
    announce(`${made.prefix} is ready`);
  }
  place.prepend(notice);
  notice.focus();
}

function keyTable(items, group, revoke) {
  const columns = [
    { head: "Prefix", cell: (key) => h("code", {}, key.prefix) },
    { head: "Name", cell: (key) => key.name ?? h("span.soft", {}, "none") },
    ...(group ? [] : [{ head: "Permission", cell: (key) => NAME_OF_TYPE[key.type] ?? key.type }]),
    { head: "Last used", cell: (key) => (key.last_used_at ? ago(key.last_used_at) : h("span.soft", {}, "never")) },
    { head: "Created", cell: (key) => ago(key.created_at) },
    {
      head: "Actions",
      cell: (key) => [
        h("a", { href: `/console/${group ? "events?api_key_prefix" : "audit?actor"}=${encodeURIComponent(key.prefix)}`, "aria-label": `${group ? "Events" : "Audit"} of ${key.prefix}` }, group ? "Events" : "Audit"),
        " ",
        h("button.danger", { type: "button", "aria-label": `Revoke ${key.prefix}`, onclick: () => revoke(key) }, "Revoke"),
      ],
    },
  ];
  return table(group ? "Keys of the group" : "Keys of the workspace", columns, items, { key: "keys" });
}
