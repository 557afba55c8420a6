// Audit: who changed what, newest first.

import { withQuery } from "../api.mjs";
import { h } from "../dom.mjs";
import { time } from "../format.mjs";
import { copyable, field, form } from "../form.mjs";
import { pagedList } from "../table.mjs";
import { windowFields, windowOf } from "../time_window.mjs";
import { differenceList } from "./audit_difference.mjs";

const PAGE = 50; // an entry may hold two large resources

/** Draws the page. */
export async function draw(main, { query }) {
  const shown = windowOf(query, "");
  const actor = query.get("actor") ?? "";
  const filters = { limit: PAGE, actor, start_time: shown.start_time, end_time: shown.end_time };
  const list = pagedList("/v1/audit_events", () => filters, entries, "No change matches. Choose a longer time, or clear the filter.");
  main.append(
    h("p.soft", {}, "Every change of the workspace, newest first. An actor is the prefix of a key, or ", h("code", {}, "cli"), " for a command on the database itself."),
    filterForm(shown, actor),
    list.element,
  );
  await list.reload();
}

function filterForm(shown, actor) {
  const shownWindow = windowFields(shown, "Any time");
  const name = h("input", { name: "actor", value: actor, spellcheck: "false", maxlength: 255, placeholder: "tg_… or cli" });
  const show = () => location.assign(withQuery("/console/audit", { ...shownWindow.chosen(), actor: name.value.trim() }));
  return h(
    "div.toolbar",
    {},
    form("Show", [shownWindow.fields, field("Actor", name)], show, { inline: true }),
    h("a.button", { href: "/console/audit" }, "Clear the filter"),
  );
}

const entries = (events) => h("div", {}, events.map(entry));

function entry(event) {
  const link = linkOf(event);
  return h(
    "article.card",
    { "data-key": event.id },
    h("h2", {}, event.action, " ", h("code", {}, link ? h("a", { href: link }, event.resource) : event.resource)),
    h(
      "p.soft",
      {},
      time(event.timestamp),
      " by ",
      h("a", { href: withQuery("/console/audit", { actor: event.actor }), title: "All of this actor" }, h("code", {}, event.actor)),
      event.before === null && ", created",
      event.after === null && ", deleted",
    ),
    differenceList(event.before, event.after),
    whole(event),
  );
}

function whole(event) {
  const side = (title, value) => (value === null ? [] : [h("h3", {}, title), h("pre", { tabindex: 0 }, JSON.stringify(value, null, 2))]);
  const details = h("details", { "data-key": `whole ${event.id}` }, h("summary", {}, "Whole entry", h("span.hidden", {}, ` ${event.id}`)));
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("dl")) return;
    details.append(
      h("dl.facts", {}, h("dt", {}, "Entry"), h("dd", {}, copyable(event.id, "Entry")), h("dt", {}, "Request id"), h("dd", {}, event.request_id ? copyable(event.request_id, "Request id") : "none: a command")),
      ...side("Before", event.before),
      ...side("After", event.after),
    );
  });
  return details;
}

/** The page of what was changed, or null where there is none or it is gone. */
function linkOf({ resource, after }) {
  if (after === null) return null;
  const [kind, id, part, inner] = resource.split("/");
  if (kind === "groups" && part === "api_keys") return withQuery("/console/keys", { group_id: id });
  if (kind === "api_keys") return "/console/keys";
  if (kind === "models" && part === "deployments") return withQuery("/console/models", { id, deployment: inner });
  if (["groups", "endpoints", "webhooks", "models"].includes(kind)) return withQuery(`/console/${kind}`, { id });
  if (kind === "training_projects" || kind === "projects") return withQuery("/console/training", { project: id, job: part === "jobs" ? inner : null });
  return null;
}
