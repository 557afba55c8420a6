// A test of a target that is not saved yet, by the public API alone: a temporary endpoint leads to it, and a temporary
// group with a key calls it through the relay (a workspace key may not call slugs). All of it is deleted afterwards.

import { Problem, read, route, send } from "../api.mjs";
import { relayWhole } from "../relay.mjs";

/** Slugs of temporary endpoints. Their groups' external ids are what is behind the prefix. */
export const TRIAL_NAME = /^[^/]+\/(console-test-[0-9a-f]{12})$/;
const LEARN_MS = 10_000;
const PAUSE_MS = 400;
const LIMIT_MS = 60_000;
const CALLS = {
  chat: { path: "/v1/chat/completions", body: { messages: [{ role: "user", content: "Reply with one word." }], max_tokens: 32 } },
  embeddings: { path: "/v1/embeddings", body: { input: "A test." } },
};

/**
 * Call `target` once. `kind`: "chat" or "embeddings"; `progress(text)` is called as it goes. Answers `{status, ms, text,
 * left}`: `left` are sentences on what could not be deleted.
 */
export async function tryTarget(prefix, target, kind, progress) {
  const random = [...crypto.getRandomValues(new Uint8Array(6))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const name = `console-test-${random}`;
  const slug = `${prefix}/${name}`;
  const made = [];
  let outcome;
  let failure = null;
  try {
    progress("Making a temporary endpoint, group and key…");
    const endpoint = await send("POST", "/v1/gateway/endpoints", { slug, targets: [target] });
    made.push([route`/v1/gateway/endpoints/${endpoint.id}`, `the endpoint ${slug}`]);
    const group = await send("POST", "/v1/gateway/groups", { metadata: { external_entity_id: name, name: "Test of a target" }, models: [{ slug }] });
    made.push([route`/v1/gateway/groups/${group.id}`, `the group ${name} and its key`]);
    const { api_key } = await send("POST", route`/v1/gateway/groups/${group.id}/api_keys`, { name });
    outcome = await callUntilKnown(slug, api_key, CALLS[kind], progress);
  } catch (error) {
    failure = error;
  }
  progress("Deleting what was made for the test…");
  const left = await removeAll(made);
  if (failure) throw withLeft(failure, left);
  return { ...outcome, left };
}

/** Proxies learn a new endpoint in about a second. Until then they answer 404: ask again for some seconds. */
async function callUntilKnown(slug, apiKey, { path, body }, progress) {
  const start = performance.now();
  for (let attempt = 1; ; attempt += 1) {
    progress(attempt === 1 ? "Calling…" : `Calling… The proxies do not know the endpoint yet (attempt ${attempt}).`);
    const sent = performance.now();
    const answer = await relayWhole(
      { method: "POST", path, bodyText: JSON.stringify({ model: slug, ...body }), apiKey },
      { signal: AbortSignal.timeout(LIMIT_MS) },
    ).catch(asTimeout);
    const ms = performance.now() - sent;
    if (!isUnknownYet(answer, slug) || performance.now() - start > LEARN_MS) return { status: answer.status, ms, text: answer.text };
    await new Promise((resume) => setTimeout(resume, PAUSE_MS));
  }
}

function asTimeout(error) {
  if (error.name !== "TimeoutError") throw error;
  throw new Problem(0, "TIMEOUT", `The target did not answer within ${LIMIT_MS / 1000} s.`);
}

function isUnknownYet({ status, body }, slug) {
  if (status === 403) return body?.error === "Authentication failed"; // the key, until the proxies know it
  return status === 404 && body?.error_code === "MODEL_NOT_FOUND" && body.error.includes(slug);
}

async function removeAll(made) {
  const left = [];
  for (const [path, what] of made.toReversed()) {
    try {
      await send("DELETE", path);
    } catch (error) {
      left.push(`Could not delete ${what}: ${error.message} Delete it yourself.`);
    }
  }
  return left;
}

function withLeft(error, left) {
  if (!left.length || !(error instanceof Problem)) return error;
  return new Problem(error.status, error.code, [error.message, ...left].join(" "), error.details, error.retryAfterS);
}

/** Delete an endpoint that a test left, and its group. */
export async function removeLeftovers({ id, slug }) {
  const [, name] = TRIAL_NAME.exec(slug);
  const { items } = await read("/v1/gateway/groups", { external_entity_id: name, limit: 1 });
  for (const group of items) await send("DELETE", route`/v1/gateway/groups/${group.id}`);
  await send("DELETE", route`/v1/gateway/endpoints/${id}`);
}
