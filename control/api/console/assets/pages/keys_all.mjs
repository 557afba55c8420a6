// All keys in one list: those of all groups and the workspace's own, newest first, with their calls of this month.

import { route, withQuery } from "../api.mjs";
import { h } from "../dom.mjs";
import { field, form, select } from "../form.mjs";
import { count } from "../format.mjs";
import { pagedList, table } from "../table.mjs";
import { keyActions } from "./keys_actions.mjs";
import { NAMES, STATE, TIMES, eventsLink, mintForm, revoke, revokeButton } from "./keys_shared.mjs";

const OWN = "/v1/api_keys";
const TYPES = [
  ["WORKSPACE_MANAGE_ALL", "Manage everything"],
  ["WORKSPACE_INVOKE", "Call platform models"],
  ["WORKSPACE_EXPORT_METRICS", "Read metrics"],
];
/** What a new key may do: its type and, behind the slash, its role. */
const NEW = [TYPES[0], ["WORKSPACE_MANAGE_ALL/operator", "Operate: policy, keys, models"], ["WORKSPACE_MANAGE_ALL/billing", "Bill: prices and credits"], ["WORKSPACE_MANAGE_ALL/viewer", "Read only"], ...TYPES.slice(1)];
const NAME_OF_TYPE = { FEDERATED: "Call slugs", ...Object.fromEntries(TYPES) };

/** Draws the page. `query`: `q`, a part of the name or the beginning of the prefix; `external_entity_id`; `type`. */
export async function drawAllKeys(main, session, query) {
  const filters = Object.fromEntries(["q", "external_entity_id", "type"].map((name) => [name, query.get(name) ?? ""]));
  const isFiltered = Object.values(filters).some(Boolean);
  const empty = isFiltered ? "No key matches. A prefix matches from its beginning on, with tg_." : "No keys yet.";
  const list = pagedList("/v1/gateway/api_keys", () => ({ ...filters, month: "true" }), (items) => allKeys(items, { session, place: shown, reload: list.reload }), empty);
  const shown = h("div");
  main.append(
    h("details.card", {}, h("summary", {}, "New key of the workspace"), h("p", {}, "Such a key manages the workspace or calls its platform models. To call slugs, create a key of a group: open the group."), mintForm(OWN, NEW, shown, list.reload)),
    shown,
    filterForm(filters),
    list.element,
  );
  await list.reload();
}

function filterForm(filters) {
  const part = h("input", { name: "q", type: "search", value: filters.q, maxlength: 255, autocomplete: "off", spellcheck: "false" });
  const entity = h("input", { name: "external_entity_id", value: filters.external_entity_id, maxlength: 255, autocomplete: "off", spellcheck: "false" });
  const type = select("type", [["", "Any"], ...Object.entries(NAME_OF_TYPE)], filters.type);
  const show = () => location.assign(withQuery("/console/keys", { q: part.value.trim(), external_entity_id: entity.value.trim(), type: type.value }));
  return h(
    "div.toolbar",
    {},
    form("Show", [field("Name or prefix", part), field("External id of a group", entity), field("Keys that", type)], show, { inline: true }),
    h("a.button", { href: "/console/keys" }, "Clear the filter"),
  );
}

function allKeys(items, context) {
  const { session, reload } = context;
  const pathOf = ({ group }) => route`/v1/gateway/groups/${group.id}/api_keys`;
  const auditLink = (key) => h("a", { href: withQuery("/console/audit", { actor: key.prefix }), "aria-label": `Audit of ${key.prefix}` }, "Audit");
  const columns = [
    ...NAMES,
    { head: "Group", cell: ({ group }) => (group ? h("a", { href: withQuery("/console/keys", { group_id: group.id }) }, h("bdi", {}, group.external_entity_id)) : h("span.soft", {}, "the workspace")) },
    { head: "May", cell: (key) => (key.role ? `Act as ${key.role}` : NAME_OF_TYPE[key.type]) },
    STATE,
    { head: "Calls this month", number: true, cell: ({ month }) => (month ? count(month.calls) : "–") },
    ...TIMES,
    {
      head: "Actions",
      cell: (key) =>
        key.group
          ? [eventsLink(key), " ", keyActions(key, { ...context, path: pathOf(key) })]
          : [auditLink(key), " ", revokeButton(key, async () => (await revoke(OWN, key, session)) && reload())],
    },
  ];
  return table("Keys", columns, items, { key: "keys" });
}
