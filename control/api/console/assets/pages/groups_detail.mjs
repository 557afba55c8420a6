// A group: its limits as they fill, who fills them, its balance, its keys, and the groups below it.

import { route, send, withQuery } from "../api.mjs";
import { confirmed } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { actionButton, copyable, field } from "../form.mjs";
import { count, time } from "../format.mjs";
import { nothing, problemNotice } from "../notice.mjs";
import { table } from "../table.mjs";
import { drawBalance } from "./groups_balance.mjs";
import { groupLink, inParts, ownerBadge, ownerWarning, readAncestors, readTree } from "./groups_data.mjs";
import { drawLimits } from "./groups_limits.mjs";
import { drawSpend, ownSpend } from "./groups_spend.mjs";
import { shareUsagePage } from "./groups_usage_link.mjs";
import { keysOf } from "./keys.mjs";

const MODES = {
  CASCADING: "Cascading: calls count against this group and every group above it.",
  INDEPENDENT: "Independent: this group is counted alone, and inherits the limits that it leaves out.",
};
const TYPEABLE = /^[!-~][ -~]{0,62}[!-~]?$/;

/** Draws the page of `group`. */
export async function drawGroup(main, group, session) {
  const { external_entity_id: entity, name } = group.metadata;
  const tree = readTree(); // for the groups below; the limits do not wait for it
  tree.catch(() => {}); // said where it is shown
  const place = h("p.soft", {}, h("a", { href: "/console/groups" }, "All groups"));
  main.append(
    place,
    h("h2", {}, h("bdi", {}, entity), name && [" · ", h("bdi", {}, name)]),
    actions(group, tree),
    facts(group),
  );
  const ancestors = await readAncestors(group);
  place.append(...ancestors.toReversed().flatMap((one) => [" › ", groupLink(one)]));
  const below = h("div");
  main.append(h("h2", {}, "Limits now"), drawSpend(group, ancestors) ?? "", drawLimits(group, ancestors, tree));
  main.append(h("h2", {}, "Prepaid balance"), drawBalance(group, ancestors));
  main.append(h("h2", {}, "Keys"), keysOf(group, session), h("h2", {}, "Groups below"), below);
  await drawBelow(below, group, tree);
}

function facts(group) {
  const { external_entity_id: entity } = group.metadata;
  const events = `/console/events?external_entity_id=${encodeURIComponent(entity)}`;
  const spend = withQuery("/console/spend", { entity });
  return h(
    "dl.facts",
    {},
    h("dt", {}, "Id"),
    h("dd", {}, copyable(group.id, "Id of the group")),
    h("dt", {}, "Enforcement"),
    h("dd", {}, MODES[group.hierarchy.limit_enforcement]),
    h("dt", {}, "May call"),
    h("dd", {}, `${count(group.models.length)} ${group.models.length === 1 ? "slug" : "slugs"}`),
    h("dt", {}, "Own spend limits"),
    h("dd", {}, ownSpend(group)),
    h("dt", {}, "Alerts"),
    h("dd", {}, group.alert_percents.length ? `at ${group.alert_percents.join(", ")} % of its limits per day and month, and of its balance` : "none"),
    group.managed_by && [h("dt", {}, "Owner"), h("dd", {}, ownerBadge(group), " applied ", time(group.managed_by.applied_at))],
    h("dt", {}, "Created"),
    h("dd", {}, time(group.created_at), ", changed ", time(group.updated_at)),
    h("dt", {}, "Calls"),
    h("dd", {}, h("a", { href: events }, "Last events"), ", ", h("a", { href: spend }, "spend of this month")),
  );
}

function actions(group, tree) {
  const id = encodeURIComponent(group.id);
  return h(
    "div.toolbar",
    {},
    h("a.button.primary", { href: `/console/groups?id=${id}&edit=1`, needs: "policy" }, "Edit name, slugs and limits"),
    h("a.button", { href: `/console/groups?new=1&parent=${id}`, needs: "policy" }, "New group below"),
    actionButton("Share usage page", () => shareUsagePage(group), { needs: "keys" }),
    actionButton("Delete", () => remove(group, tree), { class: "danger", needs: "policy" }),
  );
}

async function remove(group, tree) {
  const { external_entity_id: entity } = group.metadata;
  const known = await tree;
  const below = known.descendants(group.id).length;
  const what = h(
    "div",
    {},
    h("p", {}, "Deletes ", h("strong", {}, h("bdi", {}, entity)), below > 0 && [", ", h("strong", {}, `${known.hasMore ? "at least " : ""}${count(below)} ${below === 1 ? "group" : "groups"} below it`)], ", and all their keys. Their calls are refused within a second. This cannot be undone; events stay."),
    ownerWarning(group),
    h("div", { hidden: true }, field("Credit that is left in balances is forfeited", h("input", { type: "checkbox" }))),
  );
  const forfeit = what.lastChild;
  const path = route`/v1/gateway/groups/${group.id}`;
  async function act() {
    try {
      await send("DELETE", withQuery(path, { forfeit: forfeit.querySelector("input").checked ? "true" : "" }));
    } catch (error) {
      if (error.status === 409) forfeit.hidden = false; // credit is left: ask whether that is meant
      throw error;
    }
  }
  const parent = group.hierarchy.parent_group_id;
  const isDone = await confirmed("Delete this group?", what, "Delete", act, TYPEABLE.test(entity) ? entity : "delete");
  if (isDone) location.assign(parent ? `/console/groups?id=${encodeURIComponent(parent)}` : "/console/groups");
}

async function drawBelow(container, group, tree) {
  try {
    const known = await tree;
    const children = known.children(group.id);
    const columns = [
      { head: "Group", cell: groupLink },
      { head: "Name", cell: (child) => (child.metadata.name ? h("bdi", {}, child.metadata.name) : h("span.soft", {}, "none")) },
      { head: "Slugs", number: true, cell: (child) => count(child.models.length) },
      { head: "Below it", number: true, cell: (child) => count(known.descendants(child.id).length) },
      { head: "Owner", cell: (child) => ownerBadge(child) ?? h("span.soft", {}, "none") },
    ];
    const draw = (part) => [table(`Groups directly below, from ${part[0].metadata.external_entity_id}`, columns, part)];
    container.append(...(children.length ? inParts(children, draw) : [nothing("No groups below this one.")]));
    if (known.hasMore) container.append(h("p.soft", {}, `The ${count(known.byId.size)} oldest groups of the workspace were looked through; there may be newer ones below.`));
  } catch (error) {
    container.append(problemNotice(error));
  }
}
