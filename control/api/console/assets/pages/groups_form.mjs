// The form of a group: name, slugs and limits. Before it saves, it says what will change for whom.

import { Problem, read, readAll, route, send, withQuery } from "../api.mjs";
import { h, newId } from "../dom.mjs";
import { field, form, select } from "../form.mjs";
import { remark } from "../notice.mjs";
import { addressOf, groupLink, ownerWarning, readAncestors, readTree } from "./groups_data.mjs";
import { modelsEditor } from "./groups_models.mjs";
import { drawReview } from "./groups_review.mjs";
import { spendChanges, spendEditor } from "./groups_spend.mjs";

const MODES = [
  ["INDEPENDENT", "Independent: each group is counted alone, and inherits the limits that it leaves out"],
  ["CASCADING", "Cascading: calls below count against every group above"],
];

/** Draws the form of the group `id`, or of a new one, below `parentId` if that is given. */
export async function drawEditor(main, { id, parentId }) {
  const endpoints = readAll("/v1/gateway/endpoints");
  const [group, parent] = await Promise.all([id && read(route`/v1/gateway/groups/${id}`), parentId && read(route`/v1/gateway/groups/${parentId}`)]);
  const ancestors = group ? await readAncestors(group) : parent ? [parent, ...(await readAncestors(parent))] : [];
  const slugs = (await endpoints).items.map((endpoint) => endpoint.slug);
  const step = h("div", { tabindex: -1 });
  main.append(h("h2", {}, ...title(group, parent)), ownerWarning(group ?? {}) ?? "", step);
  step.append(editor(group, ancestors, slugs, step));
}

function title(group, parent) {
  if (group) return ["Edit ", groupLink(group)];
  return parent ? ["New group below ", groupLink(parent)] : ["New group"];
}

function editor(group, ancestors, slugs, step) {
  const parent = ancestors[0] ?? null;
  const entity = h("input", { name: "metadata.external_entity_id", maxlength: 255, autocomplete: "off", spellcheck: "false" });
  const name = h("input", { name: "metadata.name", maxlength: 255, autocomplete: "off", value: group?.metadata.name });
  const mode = select("hierarchy.limit_enforcement", MODES, "INDEPENDENT");
  const percents = h("input", { name: "alert_percents", autocomplete: "off", placeholder: "50, 80, 100", value: group?.alert_percents.join(", ") });
  const path = () => ({ enforcement: group?.hierarchy.limit_enforcement ?? parent?.hierarchy.limit_enforcement ?? mode.value, ancestors });
  const spend = spendEditor(group?.spend_limits ?? []);
  const models = modelsEditor(group?.models ?? [], slugs, path);
  const said = h("div");
  const back = group ? addressOf(group) : parent ? addressOf(parent) : "/console/groups";
  const element = form(
    "Review changes",
    [
      !group && field("External id", entity, "Your own id of the customer or team. It is in events, and cannot be changed."),
      field("Name (optional)", name),
      !group && !parent && field("Enforcement", mode, "It holds for the whole tree, and cannot be changed."),
      field("Alerts at percents (optional)", percents, "Percents of limits per day and month. Webhooks that ask for alerts are told of each."),
      spend.element,
      h("h3", {}, "Slugs and limits"),
      models.element,
      said,
    ],
    async () => {
      said.replaceChildren();
      const chosen = models.value(); // marks the controls that are wrong
      const amounts = spend.value(); // likewise
      const problem = !chosen ? "Limits are whole numbers from 1." : !amounts ? "A spend limit is an amount and a currency, such as 100.00 EUR." : !group && !entity.value.trim() ? "Type an external id." : !group && !chosen.length ? "Add a slug: a new group needs one." : null;
      if (problem) return said.replaceChildren(remark("bad", problem));
      await review(changed(chosen, amounts));
    },
    { cancel: () => location.assign(back), needs: "policy" },
  );

  /** The group as it will be. */
  function changed(chosen, spend_limits) {
    const metadata = { external_entity_id: group?.metadata.external_entity_id ?? entity.value.trim(), name: name.value.trim() || null };
    const hierarchy = { limit_enforcement: path().enforcement, parent_group_id: parent?.id ?? null };
    const alert_percents = percents.value.split(/[\s,;%]+/).filter(Boolean).map(Number).sort((one, other) => one - other);
    return { id: group?.id ?? newId(), metadata, hierarchy, alert_percents, spend_limits, models: chosen };
  }

  /** Reads the tree anew: what others changed meanwhile counts. */
  async function review(after) {
    const [now, tree] = await Promise.all([group ? read(route`/v1/gateway/groups/${group.id}`) : null, group ? readTree() : null]);
    const above = await readAncestors(after);
    const before = now ?? { ...after, metadata: { ...after.metadata, name: null }, alert_percents: [], spend_limits: [], models: [] };
    const write = (query) => (group ? send("PATCH", withQuery(route`/v1/gateway/groups/${group.id}`, query), patch(before, after), { unchanged: group }) : send("POST", withQuery("/v1/gateway/groups", query), creation(after, parent)));
    const change = { before, after, isNew: !group, ancestors: above, descendants: tree?.descendants(group.id) ?? [], isPartial: Boolean(tree?.hasMore) };
    const refusal = group && isEmpty(patch(before, after)) ? null : await refusalOf(() => write({ dry_run: "true" }));
    const shown = drawReview({ ...change, refusal }, async () => location.assign(addressOf(await write({}))), edit);
    step.replaceChildren(shown);
    step.focus();
  }

  function edit() {
    step.replaceChildren(element);
    step.focus();
  }

  return element;
}

/** Why the API refuses it, or null. */
async function refusalOf(write) {
  try {
    await write();
    return null;
  } catch (error) {
    if (error instanceof Problem) return error;
    throw error;
  }
}

const isEmpty = (body) => Object.keys(body).length === 0;

/** Only what differs: what is not touched is not written. */
function patch(before, after) {
  const hasNewModels = JSON.stringify(before.models) !== JSON.stringify(after.models);
  return {
    ...(spendChanges(before, after).length > 0 && { spend_limits: after.spend_limits }),
    ...(before.metadata.name !== after.metadata.name && { metadata: { name: after.metadata.name } }),
    ...(before.alert_percents.join() !== after.alert_percents.join() && { alert_percents: after.alert_percents }),
    ...(hasNewModels && { models: after.models }),
  };
}

function creation({ metadata, hierarchy, alert_percents, spend_limits, models }, parent) {
  return { metadata, models, alert_percents, ...(spend_limits.length > 0 && { spend_limits }), hierarchy: parent ? { parent_group_id: parent.id } : { limit_enforcement: hierarchy.limit_enforcement } };
}
