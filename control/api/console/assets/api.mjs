// Calls the management API with the session's cookie. Every change that the console makes goes through `send`.

const READ_MS = 25_000; // what shows figures says within 30 s that they are stale
const SEND_MS = 60_000;
const CHANGED = "Nothing was saved: somebody else has changed this since you opened it. Reload the page and make your change again.";
const tags = new WeakMap(); // the version of each resource that was answered

/** An error that the API answered. `status` 0: it did not answer. `details`: errors of fields, `{field, message}`. */
export class Problem extends Error {
  constructor(status, code, message, details = [], retryAfterS = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.details = details;
    this.retryAfterS = retryAfterS;
  }
}

/**
 * GET; `query`: parameters, those that are null, undefined or empty are left out, arrays are repeated. Like `send`, it fails
 * with a `Problem` if the answer is not complete in time.
 */
export function read(path, query = {}, options = {}) {
  return call("GET", withQuery(path, query), undefined, options);
}

/**
 * Any other method. Answers the JSON body, or null if there is none. A POST that failed is repeated with the same idempotency
 * key when it is sent again: if its answer was lost, it creates nothing more. `options.unchanged`: a resource as `read` or
 * `send` answered it; if somebody else has changed it since, nothing is done and the `Problem` says so.
 */
export async function send(method, path, body, options = {}) {
  if (method !== "POST" || !path.startsWith("/v1/")) return call(method, path, body, options);
  const request = JSON.stringify([path, body]);
  if (!openPosts.has(request)) openPosts.set(request, newKey());
  const answer = await call(method, path, body, { ...options, headers: { "Idempotency-Key": openPosts.get(request) } });
  openPosts.delete(request);
  return answer;
}

const openPosts = new Map(); // the idempotency keys of POSTs without a success

function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Up to `most` items of a list, page after page: `{items, hasMore}`. */
export async function readAll(path, query = {}, most = 1000, options = {}) {
  const items = [];
  let cursor = null;
  do {
    const wanted = Math.min(most - items.length, 1000);
    const page = await read(path, cursor ? { cursor } : { ...query, limit: wanted }, options);
    items.push(...page.items);
    cursor = page.pagination.cursor;
  } while (cursor && items.length < most);
  return { items: items.slice(0, most), hasMore: cursor !== null || items.length > most };
}

/** GET of a file: a blob. */
export async function readFile(path, query = {}) {
  const answer = await answered(withQuery(path, query), { credentials: "same-origin" });
  if (!answer.ok) throw await problemOf(answer);
  return answer.blob();
}

/** `path` with these parameters; text of users cannot leave its place. */
export function withQuery(path, query) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of [value].flat()) {
      if (one !== null && one !== undefined && one !== "") parameters.append(name, one);
    }
  }
  const text = parameters.toString();
  return text ? `${path}?${text}` : path;
}

/** A path whose `${…}` are encoded: route`/v1/models/${id}`. */
export function route(parts, ...values) {
  return parts.reduce((path, part, at) => path + encodeURIComponent(values[at - 1]) + part);
}

async function call(method, path, body, { signal, headers, unchanged } = {}) {
  const init = { method, signal: withDeadline(signal, method), credentials: "same-origin", headers: { Accept: "application/json", ...headers } };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers["Content-Type"] = "application/json";
  }
  const tag = tags.get(unchanged);
  if (tag) init.headers["If-Match"] = tag;
  const answer = await answered(path, init);
  if (answer.status === 401 && path !== "/console/session") location.reload(); // the session ended: ask for a key again
  if (!answer.ok) throw await problemOf(answer);
  if (answer.status === 204) return null;
  try {
    const value = await answer.json();
    const version = answer.headers.get("ETag");
    if (version && !version.startsWith("W/")) tags.set(value, version); // a proxy that compresses makes it weak: no condition then
    return value;
  } catch (error) {
    throw unanswered(error, init.signal);
  }
}

/** A signal that also ends what takes too long: control may hang, and a browser would wait for minutes. */
export function withDeadline(signal, method = "GET") {
  const deadline = AbortSignal.timeout(method === "GET" ? READ_MS : SEND_MS);
  return signal ? AbortSignal.any([signal, deadline]) : deadline;
}

/** `fetch`, with a `Problem` when nothing answers. */
export async function answered(path, init) {
  try {
    return await fetch(path, init);
  } catch (error) {
    throw unanswered(error, init.signal);
  }
}

/** What ended a call, or the reading of its answer, early: a `Problem`, or an `AbortError` if `signal` was aborted by us. */
export function unanswered(error, signal) {
  if (signal?.reason?.name === "TimeoutError") return new Problem(0, "TIMEOUT", "Tollgate does not answer in time. A change that was under way may still be made: look before you repeat it.");
  if (error.name === "AbortError") return error; // in Chromium a deadline that ends a body is one, too
  return new Problem(0, "UNREACHABLE", "Tollgate does not answer. Check your connection, and that control runs.");
}

/** What an answer other than success says. */
export async function problemOf(answer) {
  let told = {};
  try {
    told = await answer.json();
  } catch {
    // Not ours: a balancer's page, say. The status is all there is.
  }
  const message = answer.status === 412 ? CHANGED : typeof told.error === "string" ? told.error : `The answer was ${answer.status} ${answer.statusText}`;
  return new Problem(answer.status, told.code ?? "", message, told.details ?? [], told.retry_after ?? null);
}
