// Events: the billing events of a window, in detail, as they come, and as a file.

import { Problem, read, withQuery } from "../api.mjs";
import { openDialog } from "../dialog.mjs";
import { h, redraw } from "../dom.mjs";
import { count, time } from "../format.mjs";
import { actionButton, copyable, field, form } from "../form.mjs";
import { table } from "../table.mjs";
import { windowFields } from "../time_window.mjs";
import { exportEvents } from "./events_export.mjs";
import { followEvents } from "./events_follow.mjs";
import { EventReader, addressOf, filterOf } from "./events_reader.mjs";

/** Draws the page. */
export async function draw(main, { query }) {
  const filter = filterOf(query);
  const isFollowing = query.get("follow") === "1";
  main.append(filterForm(filter, isFollowing), tools(filter, isFollowing));
  const list = h("div");
  main.append(list);
  if (isFollowing) followEvents(list, filter, eventTable);
  else await listEvents(list, filter);
}

function filterForm(filter, isFollowing) {
  const shownWindow = isFollowing ? null : windowFields(filter);
  const [entities, keys] = [inputs("external_entity_ids", filter.external_entity_ids), inputs("api_keys", filter.api_keys)];
  const slug = h("input", { name: "model_slug", value: filter.model_slug, spellcheck: "false", placeholder: "acme/chat" });
  const typed = (controls) => controls.map((one) => one.value.trim()).filter(Boolean);
  const fields = [shownWindow?.fields, labelled("Group (external id)", entities), field("Slug", slug), labelled("Key prefix", keys)];
  const show = () => {
    const chosen = { external_entity_ids: typed(entities), api_keys: typed(keys), model_slug: slug.value.trim() };
    location.assign(withQuery("/console/events", { ...(shownWindow?.chosen() ?? { follow: 1 }), ...chosen }));
  };
  return h("div.toolbar", {}, form("Show", fields, show, { inline: true }));
}

/** An input per value of a parameter that may be repeated, at least one. */
function inputs(name, values) {
  return (values.length ? values : [""]).map((value) => h("input", { name, value, spellcheck: "false", maxlength: 255 }));
}

const labelled = (label, controls) => controls.map((one, at) => field(at ? `${label} ${at + 1}` : label, one));

function tools(filter, isFollowing) {
  const address = addressOf(filter);
  if (isFollowing) return h("p.toolbar", {}, h("a.button", { href: withQuery("/console/events", address) }, "Stop following"));
  return h(
    "p.toolbar",
    {},
    h("a.button", { href: withQuery("/console/events", { ...address, follow: 1 }) }, "Follow"),
    actionButton("Export …", () => exportEvents(filter)),
    h("a", { href: "/console/events" }, "Clear the filter"),
  );
}

async function listEvents(container, filter) {
  const reader = new EventReader(filter);
  const list = h("div");
  const state = h("p.soft", { role: "status" });
  const more = actionButton("Load more", load);
  container.append(state, list, more);
  let events = [];

  async function load() {
    events = events.concat(await reader.next());
    redraw(list, events.length > 0 && eventTable(events));
    more.hidden = reader.isDone;
    redraw(state, told());
  }

  function told() {
    const { start_time, end_time } = reader.window;
    if (!reader.isDone) return filter.model_slug ? `${count(events.length)} events of ${filter.model_slug} so far, oldest first.` : `The first ${count(events.length)} events, oldest first.`;
    if (events.length === 0) return nothingFound(end_time);
    return [`${count(events.length)} ${events.length === 1 ? "event" : "events"} from `, time(start_time), " to ", time(end_time), ". Later ones are not final yet."];
  }

  await load();
}

function nothingFound(until) {
  return ["No event matches until ", time(until), ". Choose a longer time or fewer filters. An event appears about a minute after its call."];
}

function eventTable(events) {
  return table(
    "Events",
    [
      { head: "Time", cell: (event) => h("span.nowrap", {}, time(event.timestamp)) },
      { head: "Group", cell: (event) => filterLink("external_entity_ids", event.externalEntityId) },
      { head: "Slug", cell: (event) => filterLink("model_slug", event.modelSlug) },
      { head: "Key", cell: (event) => filterLink("api_keys", event.apiKeyPrefix) },
      { head: "Input", number: true, cell: (event) => count(event.tokens.inputTokens) },
      { head: "Cached input", number: true, cell: (event) => count(event.tokens.cachedInputTokens) },
      { head: "Output", number: true, cell: (event) => count(event.tokens.outputTokens) },
      { head: "Details", cell: detailsButton },
    ],
    events,
  );
}

function detailsButton(event) {
  const label = `Show event ${event.idempotencyKey}`;
  return h("button.plain", { type: "button", "data-key": event.idempotencyKey, "aria-label": label, onclick: () => showEvent(event) }, "Show");
}

/** The same page, with this value as a filter besides the present ones. */
function filterLink(name, value) {
  const query = new URLSearchParams(location.search);
  const address = { ...addressOf(filterOf(query)), follow: query.get("follow"), [name]: value };
  return h("a", { href: withQuery("/console/events", address), title: "Only these" }, h("bdi", {}, value));
}

function showEvent(event) {
  return openDialog("Event", () =>
    h(
      "div",
      {},
      h(
        "dl.facts",
        {},
        fact("Time", time(event.timestamp)),
        fact("Group", [h("bdi", {}, event.externalEntityId), " ", actionButton("Open the group", () => openGroup(event.externalEntityId))]),
        fact("Slug", h("a", { href: withQuery("/console/endpoints", { slug: event.modelSlug }) }, event.modelSlug)),
        fact("Key", h("code", {}, event.apiKeyPrefix)),
        fact("Input tokens", `${count(event.tokens.inputTokens)}, of which ${count(event.tokens.cachedInputTokens)} were cached`),
        fact("Output tokens", count(event.tokens.outputTokens)),
        fact("Type", h("code", {}, event.type)),
      ),
      h("h3", {}, "Idempotency key"),
      copyable(event.idempotencyKey, "Idempotency key"),
      h("h3", {}, "Request id"),
      copyable(event.requestId, "Request id"),
      h("p.soft", {}, "What the caller sent as request metadata goes to webhooks only; the API does not list it."),
      h("details", {}, h("summary", {}, "As the API answers it"), h("pre", { tabindex: 0 }, JSON.stringify(event, null, 2))),
    ),
  );
}

async function openGroup(external_entity_id) {
  const { items } = await read("/v1/gateway/groups", { external_entity_id });
  if (items.length === 0) throw new Problem(404, "NOT_FOUND", "The group was deleted. Its events stay.");
  location.assign(withQuery("/console/groups", { id: items[0].id }));
}

const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
