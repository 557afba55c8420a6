// Calls the inference API through `POST /console/call`: this machine's control passes the call on, and its answer back.

import { Problem, answered, problemOf, unanswered, withDeadline } from "./api.mjs";

const NEWLINE = 10;
const HEAD_BYTES = 1 << 20;

/**
 * Make a call and pass on what comes. `call`: `{method, path, headers, bodyText, apiKey}`; `bodyText` is JSON, and its
 * numbers arrive as they are written; `apiKey` null is the session's own. `onHead({status, headers})` is called once,
 * `onChunk(bytes)` for each piece of the body. A `Problem` is the console's own, not the called API's.
 */
export async function relay(call, { signal, onHead, onChunk }) {
  const answer = await answered("/console/call", {
    method: "POST",
    signal,
    credentials: "same-origin",
    headers: { "Content-Type": "application/json" },
    body: envelope(call),
  });
  if (answer.status === 401) location.reload(); // the session ended: ask for a key again
  if (!answer.ok) throw await problemOf(answer);
  const reader = answer.body.getReader();
  let head = new Uint8Array(0); // what came of the first line; null once it is whole
  for (let piece = await next(reader, signal); piece; piece = await next(reader, signal)) {
    if (head === null) {
      onChunk(piece);
      continue;
    }
    head = joined(head, piece);
    const end = head.indexOf(NEWLINE);
    if (end === -1 && head.length < HEAD_BYTES) continue;
    onHead(headOf(head.subarray(0, end)));
    const rest = head.subarray(end + 1);
    head = null;
    if (rest.length) onChunk(rest);
  }
  if (head !== null) throw broken();
}

/** Make a call and answer `{status, headers, text, body}`; `body` is the parsed JSON, or null if it is none. */
export async function relayWhole(call, { signal } = {}) {
  const decoder = new TextDecoder();
  let head = null;
  let text = "";
  await relay(call, {
    signal,
    onHead: (one) => (head = one),
    onChunk: (piece) => (text += decoder.decode(piece, { stream: true })),
  });
  text += decoder.decode();
  return { ...head, text, body: parsed(text) };
}

/** The same with `call`'s JSON body; an error of the called API is a `Problem`, too. */
export async function relayJson(method, path, { signal } = {}) {
  const { status, headers, body } = await relayWhole({ method, path }, { signal: withDeadline(signal, method) });
  if (status >= 200 && status < 300 && body !== null) return body;
  const told = typeof body?.error === "string" ? body.error : `The proxy answered ${status}.`;
  throw new Problem(status, body?.error_code ?? "", told, [], Number(headerOf(headers, "retry-after")) || null);
}

/** A header's value, or null. */
export function headerOf(headers, name) {
  return headers.find(([one]) => one.toLowerCase() === name)?.[1] ?? null;
}

/** The JSON value of a text, or null. */
export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

// `bodyText` goes in as it is: parsing and writing it again would round large numbers.
function envelope({ method, path, headers = [], bodyText, apiKey = null }) {
  const rest = JSON.stringify({ method, path, headers: Object.fromEntries(headers), api_key: apiKey });
  return bodyText === undefined ? rest : `${rest.slice(0, -1)},"body":${bodyText}}`;
}

async function next(reader, signal) {
  try {
    const { done, value } = await reader.read();
    return done ? null : value;
  } catch (error) {
    throw error.name === "AbortError" ? unanswered(error, signal) : broken();
  }
}

function headOf(line) {
  const head = parsed(new TextDecoder().decode(line));
  if (!head) throw broken();
  return head;
}

const broken = () => new Problem(0, "CUT_OFF", "The answer broke off. The call may have been made: look for its event.");

function joined(one, other) {
  const both = new Uint8Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}
