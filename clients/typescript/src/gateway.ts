// The client: openapi-fetch at one URL with one key.

import createClient, { type Client } from "openapi-fetch";
import { CREATING } from "./creating.js";
import { IDEMPOTENCY_KEY, repeating, type Retries } from "./retries.js";
import type { paths } from "./schema.js";

export type Tollgate = Client<paths>;

export interface Options {
  /** Of the management API. */
  baseUrl: string;
  /** A workspace key. */
  apiKey: string;
  /** Of one attempt, in seconds; 30 if left out. */
  timeout?: number;
  retries?: Partial<Retries>;
  /** Instead of the global one. */
  fetch?: typeof fetch;
}

/** Return a client of the management API. Each operation is a method and a path: `client.GET("/v1/…", {…})`. */
export function tollgate(options: Options): Tollgate {
  if (!/^[!-~]+$/.test(options.apiKey)) {
    throw new TypeError("apiKey is empty or has a character that no key has: is there a line break at its end?");
  }
  const retries = { most: 4, firstWait: 0.5, longestWait: 60, ...options.retries };
  const client = createClient<paths>({
    baseUrl: options.baseUrl,
    headers: { Authorization: `Bearer ${options.apiKey}` },
    fetch: repeating(options.fetch ?? fetch, retries, options.timeout ?? 30),
  });
  client.use({
    onRequest({ request, schemaPath }) {
      // A key of its own for each call that creates something, the same for all its repeats. The caller's wins.
      const creates = request.method === "POST" && CREATING.has(schemaPath);
      if (creates && !request.headers.has(IDEMPOTENCY_KEY)) request.headers.set(IDEMPOTENCY_KEY, crypto.randomUUID());
    },
  });
  return client;
}
