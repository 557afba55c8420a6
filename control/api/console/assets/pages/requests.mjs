// Requests: single calls, newest first; found by the id that a customer sends, with the limit that has refused them.

import { withQuery } from "../api.mjs";
import { openDialog } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { count, milliseconds, time } from "../format.mjs";
import { copyable, field, form } from "../form.mjs";
import { limitText } from "../limit_kinds.mjs";
import { pagedList, table } from "../table.mjs";
import { windowFields, windowOf } from "../time_window.mjs";

const FILTERS = [
  { name: "request_id", label: "Request id" },
  { name: "external_entity_id", label: "Group (external id)" },
  { name: "slug", label: "Slug", placeholder: "acme/chat" },
  { name: "api_key_prefix", label: "Key prefix", placeholder: "tg_…" },
  { name: "status", label: "Status", placeholder: "429 or 4xx" },
];
const CLIENT_CLOSED = 499;

/** Draws the page. */
export async function draw(main, { query }) {
  const shown = windowOf(query, "");
  const chosen = Object.fromEntries(FILTERS.map(({ name }) => [name, query.get(name) ?? ""]));
  const filters = { ...chosen, start_time: shown.start_time, end_time: shown.end_time };
  const list = pagedList("/v1/gateway/requests", () => filters, requestTable, "No request matches. Choose a longer time or fewer filters. A call appears a few seconds after it ended.");
  main.append(
    h("p.soft", {}, "Single calls, newest first: successes, refusals and failures. Sums are in the overview and in usage reports."),
    filterForm(shown, chosen),
    list.element,
  );
  await list.reload();
}

function filterForm(shown, chosen) {
  const shownWindow = windowFields(shown, "Any time");
  const inputs = FILTERS.map(({ name, placeholder }) => h("input", { name, value: chosen[name], spellcheck: "false", maxlength: 257, placeholder }));
  const typed = () => Object.fromEntries(inputs.map((one) => [one.name, one.value.trim()]));
  const show = () => location.assign(withQuery("/console/requests", { ...shownWindow.chosen(), ...typed() }));
  return h(
    "div.toolbar",
    {},
    form("Show", [...FILTERS.map(({ label }, at) => field(label, inputs[at])), shownWindow.fields], show, { inline: true }),
    h("a.button", { href: "/console/requests" }, "Clear the filter"),
  );
}

function requestTable(requests) {
  const sampled = requests.some((request) => request.weight > 1);
  return h(
    "div",
    {},
    sampled && h("p.soft", {}, "There were more calls a second than are listed. A row of weight 12 stands for 12 calls."),
    table("Requests", columns(sampled), requests),
  );
}

const columns = (sampled) => [
  { head: "Time", cell: (request) => h("span.nowrap", {}, time(request.timestamp)) },
  { head: "Status", cell: statusBadge },
  { head: "Reason", cell: reason },
  { head: "Group", cell: (request) => filterLink("external_entity_id", request.external_entity_id) },
  { head: "Slug", cell: (request) => filterLink("slug", request.slug) },
  { head: "Latency", number: true, cell: (request) => h("span.nowrap", {}, milliseconds(request.duration_ms)) },
  { head: "Tokens", number: true, cell: (request) => (request.tokens ? count(request.tokens.inputTokens + request.tokens.outputTokens) : "–") },
  { head: "Cost", number: true, cell: (request) => h("span.nowrap", {}, costOf(request)) },
  ...(sampled ? [{ head: "Weight", number: true, cell: (request) => count(request.weight) }] : []),
  { head: "Details", cell: detailsButton },
];

function statusBadge(request) {
  const { status } = request;
  const tone = status < 400 ? "good" : status >= 500 ? "bad" : "warn";
  return h(`span.badge.${tone}`, {}, String(status));
}

function reason(request) {
  if (!request.error_code) return request.status < 400 ? "" : h("span.words", {}, "error of the upstream, or of the key");
  return h("span.words", {}, h("code", {}, request.error_code), request.limit && `: ${limitText(request.limit)}`);
}

const costOf = ({ cost }) => (cost ? `${cost.amount} ${cost.currency}` : "–");

/** The same page, with this value as a filter besides the present ones. */
function filterLink(name, value) {
  if (value === null) return "–";
  const address = { ...Object.fromEntries(new URLSearchParams(location.search)), [name]: value };
  return h("a", { href: withQuery("/console/requests", address), title: "Only these" }, h("bdi", {}, value));
}

function detailsButton(request) {
  const label = `Show request ${request.request_id}`;
  return h("button.plain", { type: "button", "data-key": `${request.timestamp} ${request.request_id}`, "aria-label": label, onclick: () => showRequest(request) }, "Show");
}

function showRequest(request) {
  const { limit, tokens } = request;
  return openDialog("Request", () =>
    h(
      "div",
      {},
      h(
        "dl.facts",
        {},
        fact("Ended", time(request.timestamp)),
        fact("Status", [statusBadge(request), request.status === CLIENT_CLOSED && " the caller left"]),
        request.error_code && fact("Error code", h("code", {}, request.error_code)),
        limit && fact("Limit", limitText(limit)),
        limit && fact("Limit of", limit.group_id ? h("a", { href: withQuery("/console/groups", { id: limit.group_id }) }, limit.group_id) : limit.api_key_prefix ? `key ${limit.api_key_prefix}` : "the workspace"),
        fact("Group", request.external_entity_id ? h("bdi", {}, request.external_entity_id) : "none"),
        fact("Key", h("code", {}, request.api_key_prefix)),
        fact("Slug", request.slug ?? "none"),
        fact("Path", h("code", {}, request.path)),
        fact("First byte after", milliseconds(request.time_to_first_byte_ms)),
        fact("Ended after", milliseconds(request.duration_ms)),
        fact("Tokens", tokens ? `${count(tokens.inputTokens)} in, of which ${count(tokens.cachedInputTokens)} were cached, ${count(tokens.outputTokens)} out` : "none billed yet"),
        fact("Cost", costOf(request)),
        request.weight > 1 && fact("Stands for", `${count(request.weight)} calls`),
      ),
      h("h3", {}, "Request id"),
      copyable(request.request_id, "Request id"),
      ...(request.event_key ? [h("h3", {}, "Billing event"), copyable(request.event_key, "Billing event")] : []),
      h("details", {}, h("summary", {}, "As the API answers it"), h("pre", { tabindex: 0 }, JSON.stringify(request, null, 2))),
    ),
  );
}

const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
