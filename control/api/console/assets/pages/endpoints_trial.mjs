// A test of a target that is not saved yet, by the public API alone: a temporary endpoint leads to it, and a key of the
// group of test calls calls it through the relay. Endpoint and key are deleted afterwards.

import { Problem, route, send } from "../api.mjs";
import { relayWhole } from "../relay.mjs";
import { TEST_ENTITY, testKey, withdraw } from "./test_calls.mjs";

/** Slugs of temporary endpoints. */
export const TRIAL_NAME = /^[^/]+\/console-test-[0-9a-f]{12}$/;
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
  const slug = `${prefix}/console-test-${random}`;
  const undo = []; // what to do afterwards, and what it is
  let outcome;
  let failure = null;
  try {
    progress("Making a temporary endpoint and key…");
    const endpoint = await send("POST", "/v1/gateway/endpoints", { slug, targets: [target] });
    undo.push([() => send("DELETE", route`/v1/gateway/endpoints/${endpoint.id}`), `the endpoint ${slug}`]);
    undo.push([() => withdraw(slug), `the slug ${slug} of the group ${TEST_ENTITY}`]);
    const key = await testKey(slug);
    undo.push([key.end, `the key ${key.prefix} of the group ${TEST_ENTITY}`]);
    progress("Calling…");
    outcome = await call(slug, key.apiKey, CALLS[kind]);
  } catch (error) {
    failure = error;
  }
  progress("Deleting what was made for the test…");
  const left = await undoAll(undo);
  if (failure) throw withLeft(failure, left);
  return { ...outcome, left };
}

async function call(slug, apiKey, { path, body }) {
  const sent = performance.now();
  const answer = await relayWhole(
    { method: "POST", path, bodyText: JSON.stringify({ model: slug, ...body }), apiKey },
    { signal: AbortSignal.timeout(LIMIT_MS) },
  ).catch(asTimeout);
  return { status: answer.status, ms: performance.now() - sent, text: answer.text };
}

function asTimeout(error) {
  if (error.name !== "TimeoutError") throw error;
  throw new Problem(0, "TIMEOUT", `The target did not answer within ${LIMIT_MS / 1000} s.`);
}

async function undoAll(undo) {
  const left = [];
  for (const [act, what] of undo.toReversed()) {
    try {
      await act();
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

/** Delete an endpoint that a test left. */
export async function removeLeftovers({ id, slug }) {
  await withdraw(slug);
  await send("DELETE", route`/v1/gateway/endpoints/${id}`);
}
