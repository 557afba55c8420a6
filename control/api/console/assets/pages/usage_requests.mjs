// Why a customer's calls were refused or failed, and one call by its request id.

import { h } from "../dom.mjs";
import { count, milliseconds, time } from "../format.mjs";
import { field, form } from "../form.mjs";
import { limitName } from "../limit_bars.mjs";
import { pagedList, table } from "../table.mjs";

const REASONS = {
  RATE_LIMITED: "a limit is reached",
  SPEND_LIMIT_EXCEEDED: "a spend limit is reached",
  BALANCE_EXHAUSTED: "the prepaid balance is used up",
  UNPRICED: "the slug has no price",
};
const CLIENT_CLOSED = 499;

/** The section. `path`: below which the page's data are. */
export function refusedCalls(path) {
  const id = h("input", { name: "request_id", maxlength: 128, spellcheck: "false", autocomplete: "off" });
  const list = pagedList(`${path}/requests`, () => ({ request_id: id.value.trim(), limit: 20 }), drawn, empty);
  const isSearch = () => id.value.trim() !== "";
  function empty(hasMore) {
    if (hasMore) return "Nothing here among the newest calls. There may be more further back.";
    return isSearch() ? "No call with this request id is listed. Check the id; calls are listed for some days, a few seconds after they end." : "No call was refused or failed in the last days.";
  }
  list.reload();
  return h(
    "section",
    {},
    h("h2", {}, "Refused and failed calls"),
    h("p.soft", {}, "The newest first. Type the request id of an answer (header ", h("code", {}, "x-request-id"), ") to see any one call."),
    h("div.toolbar", {}, form("Show", field("Request id", id), () => list.reload(), { inline: true })),
    list.element,
  );
}

function drawn(calls) {
  const hasCost = calls.some((call) => "cost" in call && call.cost);
  const isSampled = calls.some((call) => call.weight > 1);
  const columns = [
    { head: "Ended", cell: (call) => h("span.nowrap", {}, time(call.timestamp)) },
    { head: "Status", cell: status },
    { head: "Reason", cell: reason },
    { head: "Limit", cell: ({ limit }) => (limit ? h("span.nowrap", {}, limitText(limit)) : "–") },
    { head: "Slug", cell: ({ slug }) => (slug ? h("code.nowrap", {}, slug) : "–") },
    { head: "Request id", cell: (call) => [h("code.nowrap", {}, call.request_id), !call.own && h("div.soft", {}, "of a group below")] },
    { head: "Latency", number: true, cell: (call) => h("span.nowrap", {}, milliseconds(call.duration_ms)) },
    ...(hasCost ? [{ head: "Cost", number: true, cell: ({ cost }) => (cost ? `${cost.amount} ${cost.currency}` : "–") }] : []),
    ...(isSampled ? [{ head: "Calls like it", number: true, cell: ({ weight }) => count(weight) }] : []),
  ];
  return table("Refused and failed calls", columns, calls);
}

function status(call) {
  const tone = call.status < 400 ? "good" : call.status >= 500 ? "bad" : "warn";
  return h(`span.badge.${tone}`, {}, String(call.status));
}

function reason(call) {
  if (call.status < 400) return "answered";
  if (call.status === CLIENT_CLOSED) return "the caller left before the end";
  if (!call.error_code) return "an error of the model's provider, or of the key";
  const text = REASONS[call.error_code];
  return [h("code.nowrap", {}, call.error_code), text && h("div.soft", {}, text)];
}

/** "5 requests per minute, shared"; of a limit that the page does not show no threshold. */
function limitText({ type, unit, threshold, own }) {
  const names = { SPEND: `spend per ${unit?.toLowerCase()}`, BALANCE: "prepaid balance" };
  const name = names[type] ?? limitName({ type, unit });
  return `${threshold === null ? "" : `${typeof threshold === "number" ? count(threshold) : threshold} `}${name}${own ? "" : ", shared"}`;
}
