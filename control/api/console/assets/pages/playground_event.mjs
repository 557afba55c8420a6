// The billing event that a call made. The list of events reaches it after the holdback; until then the page counts down.

import { answered, problemOf, withQuery } from "../api.mjs";
import { h, redraw } from "../dom.mjs";
import { count, duration, time } from "../format.mjs";
import { announce, problemNotice, remark } from "../notice.mjs";

const EVENTS = "/v1/gateway/events";
const LATE_MS = 20_000; // how much later than its call an event may be listed, before we say that there is none
const DAY_MS = 86_400_000;

/**
 * A card that looks for the one event of the call that has just ended, until it is listed or cannot come. `prefix`: the
 * key's; where it is null, all events of that time are read.
 */
export function billingEvent(requestId, prefix) {
  const content = h("div");
  const card = h("section.card", {}, h("h2", {}, "Billing event"), content);
  look(card, content, requestId, prefix).catch((error) => redraw(content, problemNotice(error)));
  return card;
}

async function look(card, content, requestId, prefix) {
  // An event is never stamped before the list's end at the call's end: the list begins there.
  const first = await page({ start_time: new Date(Date.now() - DAY_MS).toISOString(), limit: 1, api_keys: prefix });
  const since = first.until;
  const endedAt = first.now;
  let reached = first;
  while (card.isConnected) {
    const missing = endedAt - reached.until;
    await countdown(card, content, requestId, Math.max(1000, missing));
    reached = await page({ start_time: new Date(since).toISOString(), limit: 1000, api_keys: prefix }, requestId);
    if (reached.found.length > 0) return show(content, reached.found, requestId);
    if (reached.until > endedAt + LATE_MS) {
      redraw(content, remark("", "The call made no event: one that is refused before it is dispatched is not billed, and neither is a count of tokens that we answer ourselves."));
      return announce("No billing event");
    }
  }
}

/** The events that match, and the list's reach: `{found, until, now}`, both by control's clock, in milliseconds. */
async function page(query, requestId = null) {
  const found = [];
  let asked = query;
  for (;;) {
    const answer = await answered(withQuery(EVENTS, asked), { credentials: "same-origin", headers: { Accept: "application/json" } });
    if (!answer.ok) throw await problemOf(answer);
    const { items, pagination, window } = await answer.json();
    found.push(...items.filter((item) => item.requestId === requestId));
    if (requestId === null || !pagination.has_more) {
      return { found, until: Date.parse(window.end_time), now: Date.parse(answer.headers.get("date") ?? "") || Date.now() };
    }
    asked = { cursor: pagination.cursor };
  }
}

async function countdown(card, content, requestId, waitMs) {
  const end = Date.now() + waitMs;
  const left = h("strong");
  redraw(content, h("p", {}, "Looking for the event of request ", h("code", {}, requestId), ". The list of events reaches it in ", left, "."));
  while (card.isConnected && Date.now() < end) {
    left.textContent = duration((end - Date.now()) / 1000);
    await new Promise((resolve) => setTimeout(resolve, Math.min(1000, Math.max(50, end - Date.now()))));
  }
}

function show(content, found, requestId) {
  const facts = found.map((event) =>
    h(
      "dl.facts",
      {},
      fact("Event", h("code", {}, event.idempotencyKey)),
      fact("Time", time(event.timestamp)),
      fact("Request", h("code", {}, event.requestId)),
      fact("Slug", h("code", {}, event.modelSlug)),
      fact("Group", h("a", { href: withQuery("/console/events", { external_entity_id: event.externalEntityId }) }, event.externalEntityId)),
      fact("Key", h("code", {}, event.apiKeyPrefix)),
      fact("Input tokens", `${count(event.tokens.inputTokens)}, of which cached ${count(event.tokens.cachedInputTokens)}`),
      fact("Output tokens", count(event.tokens.outputTokens)),
    ),
  );
  const notice = found.length === 1 ? null : remark("bad", `${found.length} events have the request id ${requestId}.`);
  redraw(content, notice, facts);
  announce(found.length === 1 ? "The billing event is here" : `${found.length} billing events`);
}

const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
