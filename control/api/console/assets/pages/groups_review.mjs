// The step before a group is saved: what changes, for whom, and what the API would refuse.

import { h } from "../dom.mjs";
import { actionButton } from "../form.mjs";
import { nothing, problemNotice } from "../notice.mjs";
import { table } from "../table.mjs";
import { changes } from "./groups_rules.mjs";
import { spendChanges } from "./groups_spend.mjs";

/**
 * `change`: `{before, after, isNew, ancestors, descendants, isPartial, refusal}`; `refusal`: why the API will not save it, or null.
 * `save()` and `edit()`: the two ways out.
 */
export function drawReview(change, save, edit) {
  const { before, after, isNew, ancestors, descendants, isPartial, refusal } = change;
  const rows = [...nameChange(change), ...percentsChange(change), ...spendChanges(before, after), ...changes(before, after, ancestors, descendants)];
  const columns = [
    { head: "What", cell: (row) => [row.slug && [h("code", {}, row.slug), " "], row.what] },
    { head: "Before", cell: (row) => h("bdi", {}, row.was) },
    { head: "After", cell: (row) => h("bdi", {}, row.becomes) },
    { head: "Effect", cell: (row) => row.words.map((words) => h("div.words", {}, words)) },
  ];
  const canSave = !refusal && rows.length > 0;
  return h(
    "section",
    { "aria-label": "Review" },
    h("h3", {}, isNew ? "Review the new group" : "Review the changes"),
    refusal && problemNotice(refusal),
    rows.length ? table("What changes", columns, rows) : nothing("Nothing changes."),
    isPartial && h("p.soft", {}, "The workspace has more groups than were looked through: groups below may be missing here. Tollgate checks all of them when it saves."),
    canSave && h("p.soft", {}, "Proxies apply it in about a second. What is counted already stays counted."),
    h(
      "div.actions",
      {},
      h("button", { type: "button", onclick: () => edit() }, "Back to the form"),
      canSave && actionButton(isNew ? "Create the group" : "Save", () => save(), { class: "primary" }),
    ),
  );
}

function percentsChange({ before, after }) {
  const [was, becomes] = [before, after].map((group) => group.alert_percents.join(", ") || "none");
  return was === becomes ? [] : [{ what: "alerts at percents", was, becomes, words: ["Those of its limits that are used to that part already are told of at once."] }];
}

function nameChange({ before, after, isNew }) {
  const rows = [];
  if (isNew) rows.push({ what: "external id", was: "–", becomes: after.metadata.external_entity_id, words: [] });
  const [was, becomes] = [before.metadata.name ?? "none", after.metadata.name ?? "none"];
  if (was !== becomes) rows.push({ what: "name", was, becomes, words: ["Shown in lists; it is in no event."] });
  return rows;
}
