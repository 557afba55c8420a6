// One asynchronous request: its state, its attempts, its errors; and how to cancel it.

import { Problem, route, send, withQuery } from "../api.mjs";
import { confirmed } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { actionButton } from "../form.mjs";
import { ago, time } from "../format.mjs";
import { keepFresh } from "../live.mjs";
import { announce, remark } from "../notice.mjs";
import { relayJson } from "../relay.mjs";
import { table } from "../table.mjs";

const REFRESH_S = 2;
const STATES = {
  QUEUED: ["warn", "waits for its first attempt"],
  IN_PROGRESS: ["warn", "runs, or its result is being told"],
  SUCCEEDED: ["good", "has succeeded"],
  FAILED: ["bad", "has failed"],
  EXPIRED: ["bad", "did not begin in time"],
  CANCELED: ["", "was canceled before it began"],
  WEBHOOK_FAILED: ["bad", "has ended, but its webhook did not accept the result"],
};

/** A card of the request, kept up to date. `modelId`: null looks among all models of the workspace. */
export function requestView(requestId, modelId) {
  const content = h("div");
  const path = modelId ? route`/models/${modelId}/async_request/${requestId}` : route`/async_request/${requestId}`;
  const fresh = keepFresh(content, REFRESH_S, load, build);

  async function load() {
    try {
      const request = await relayJson("GET", path);
      return { request, attempts: await attemptsOf(request) };
    } catch (error) {
      if (error instanceof Problem && error.status === 404) return { request: null };
      throw error;
    }
  }

  function build({ request, attempts }) {
    if (!request) return remark("warn", "There is no such request. One that ended more than an hour ago is forgotten; so is one of a deleted model.");
    const [tone, said] = STATES[request.status] ?? ["", ""];
    return [
      h(
        "dl.facts",
        {},
        fact("Request", h("code", {}, request.request_id)),
        fact("State", [h(`span.badge${tone && `.${tone}`}`, {}, request.status), " ", said]),
        fact("Since", [time(request.status_at), " · ", ago(request.status_at)]),
        fact("Created", [time(request.created_at), " · ", ago(request.created_at)]),
        fact("Webhook", request.webhook_status),
        fact("Model", h("a", { href: withQuery("/console/async", { id: request.model_id }) }, request.model_id)),
        fact("Deployment", h("a", { href: withQuery("/console/models", { id: request.model_id, deployment: request.deployment_id }) }, request.deployment_id)),
      ),
      request.errors.map((error) => remark("bad", h("code", {}, error.code), " ", error.message)),
      attempts && attemptList(attempts),
      request.status === "QUEUED" && actionButton("Cancel the request", cancel, { class: "danger" }),
    ];
  }

  async function cancel() {
    let answer = null;
    const text = h("p", {}, "It is taken out of the queue, and no webhook is told. One that begins meanwhile goes on.");
    const isDone = await confirmed("Cancel the request", text, "Cancel the request", async () => (answer = await relayJson("DELETE", path)));
    if (!isDone) return;
    announce(answer.message ?? (answer.canceled ? "Canceled" : "Not canceled"));
    await fresh.now();
  }

  return h("section.card", {}, h("h2", {}, "Asynchronous request"), content);
}

/** The lines that the deployment's log has of the request: one per attempt; null when the log cannot be read. */
async function attemptsOf({ model_id: model, deployment_id: deployment, request_id: request }) {
  try {
    const path = route`/v1/models/${model}/deployments/${deployment}/logs`;
    return (await send("POST", path, { request_id: request, direction: "asc", limit: 100 })).logs;
  } catch (error) {
    if (error instanceof Problem && [403, 404].includes(error.status)) return null;
    throw error;
  }
}

function attemptList(lines) {
  if (lines.length === 0) return h("p.soft", {}, "The deployment's log has no attempt yet; one is logged within 5 s of its end.");
  return table(
    "Attempts, from the deployment's log",
    [
      { head: "Logged", cell: (line) => time(new Date(Number(BigInt(line.timestamp) / 1_000_000n)).toISOString()) },
      { head: "Attempt", cell: (line) => line.message },
      { head: "Replica", cell: (line) => line.replica ?? "–" },
    ],
    lines,
  );
}

const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
