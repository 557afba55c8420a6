// Sends a request again where that cannot do anything twice: it was refused before it was carried out (429, and 409 with
// `retry_after`), or it is safe to repeat (GET, PUT, DELETE, and a POST with an `Idempotency-Key`).

import { errorOf, noAnswer, type TollgateError } from "./failures.js";

/** The terms of repeats. `most`: how often a request is repeated; 0: never. Times are in seconds. */
export interface Retries {
  most: number;
  firstWait: number;
  /** A `retry_after` above it is not waited for: the error is thrown, with its `retryAfter`. */
  longestWait: number;
}

export const IDEMPOTENCY_KEY = "Idempotency-Key";
const REPEATABLE = new Set(["GET", "HEAD", "PUT", "DELETE"]);
const OUTAGES = new Set([502, 503, 504]);

/** Return a `fetch` that repeats requests, and throws TollgateError for every answer but success. */
export function repeating(send: typeof fetch, retries: Retries, timeout: number): (request: Request) => Promise<Response> {
  return async (request) => {
    for (let repeats = 1; ; repeats++) {
      const outcome = await attempt(send, request.clone(), timeout);
      if (outcome instanceof Response) return outcome;
      const wait = waitOf(request, outcome, repeats, retries);
      if (wait === undefined) throw outcome;
      await new Promise((resolve) => setTimeout(resolve, wait * 1000));
      request.signal.throwIfAborted();
    }
  };
}

async function attempt(send: typeof fetch, request: Request, timeout: number): Promise<Response | TollgateError> {
  const signal = AbortSignal.any([request.signal, AbortSignal.timeout(timeout * 1000)]);
  try {
    // No redirect takes the key along.
    const answer = await send(request, { signal, redirect: "manual" });
    const isJson = answer.headers.get("content-type")?.startsWith("application/json") ?? false;
    return answer.ok && isJson ? answer : await errorOf(request, answer);
  } catch (failure) {
    request.signal.throwIfAborted();
    return noAnswer(request, failure);
  }
}

function waitOf(request: Request, error: TollgateError, repeats: number, retries: Retries): number | undefined {
  if (repeats > retries.most || !mayRepeat(request, error)) return undefined;
  const spread = Math.random(); // callers that failed together shall not come back together
  if (error.retryAfter === undefined) {
    return Math.min(retries.longestWait, retries.firstWait * 2 ** (repeats - 1)) * (0.5 + spread / 2);
  }
  return error.retryAfter > retries.longestWait ? undefined : error.retryAfter + retries.firstWait * spread;
}

function mayRepeat(request: Request, error: TollgateError): boolean {
  if (error.status === 429 || (error.status === 409 && error.retryAfter !== undefined)) return true;
  const isSafe = REPEATABLE.has(request.method) || request.headers.has(IDEMPOTENCY_KEY);
  return isSafe && (error.status === undefined || OUTAGES.has(error.status));
}
