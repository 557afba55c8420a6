// Uses `tollgate-client` against a running product: resources, pages, errors, limits and a webhook's message.

import { strict as assert } from "node:assert";
import { readFileSync } from "node:fs";
import { iterate, ok, tollgate, TollgateError, verifyWebhook, WebhookVerificationError } from "tollgate-client";
import type { components } from "tollgate-client";

const GROUPS = 5;
const BURST = 150; // more than the requests of a second
const MOST_RETRIES_A_MINUTE = 10;
const options = { baseUrl: process.env.TOLLGATE_URL!, apiKey: process.env.TOLLGATE_API_KEY! };
const client = tollgate({ ...options, retries: { longestWait: 1 } });

function create(entity: string): Promise<components["schemas"]["GatewayGroupV1"]> {
  const body = { metadata: { external_entity_id: entity }, models: [{ slug: process.env.SLUG! }] };
  return ok(client.POST("/v1/gateway/groups", { body }));
}

async function errorOf(call: Promise<unknown>): Promise<TollgateError> {
  try {
    await call;
  } catch (error) {
    if (error instanceof TollgateError) return error;
    throw error;
  }
  throw new Error("it succeeded");
}

const groups = await Promise.all(Array.from({ length: GROUPS }, (_, number) => create(`ts-${number}`)));
const listed = new Set<string>();
let pages = 0;
for await (const one of iterate((cursor) => {
  pages++;
  return client.GET("/v1/gateway/groups", { params: { query: { limit: 2, cursor } } });
})) {
  listed.add(one.id);
}
assert(groups.every((one) => listed.has(one.id)));
assert(pages > GROUPS / 2);

const path = { group_id: groups[0]!.id };
const key = await ok(client.POST("/v1/gateway/groups/{group_id}/api_keys", { params: { path }, body: { name: "first" } }));
assert(key.api_key.startsWith(`${key.prefix}.`));

assert.equal((await errorOf(create("ts-0"))).status, 409);
const invalid = await errorOf(create(""));
assert.equal(invalid.code, "INVALID_REQUEST");
assert.equal(invalid.details[0]?.field, "metadata.external_entity_id");
assert(invalid.requestId);
assert(!String(invalid.stack).includes(options.apiKey));

const codes: string[] = [];
let last: TollgateError | undefined;
for (let count = 0; count <= MOST_RETRIES_A_MINUTE; count++) {
  const params = { path: { model_id: "other", deployment_id: "other" } };
  last = await errorOf(client.POST("/v1/models/{model_id}/deployments/{deployment_id}/retry", { params }));
  codes.push(last.code);
}
assert.deepEqual(codes, [...Array<string>(MOST_RETRIES_A_MINUTE).fill("NOT_FOUND"), "RATE_LIMITED"]);
assert(last!.retryAfter! > 1);

assert.throws(
  () => tollgate({ ...options, apiKey: `${options.apiKey}\n` }),
  (error) => error instanceof TypeError && !error.message.includes(options.apiKey),
);

const patient = tollgate({ ...options, retries: { most: 20 } });
await Promise.all(Array.from({ length: BURST }, () => patient.GET("/v1/gateway/groups", { params: { query: { limit: 1 } } })));

const message = JSON.parse(readFileSync(process.argv[2]!, "utf8")) as Record<string, string>;
const headers = {
  "Webhook-Id": message["id"],
  "webhook-timestamp": message["timestamp"],
  "webhook-signature": message["signature"],
};
const body = new Uint8Array(Buffer.from(message["body"]!, "base64"));
const verified = (await verifyWebhook(message["secret"]!, headers, body)) as { type: string };
assert.equal(verified.type, "TEST");
await assert.rejects(verifyWebhook(message["secret"]!, headers, new Uint8Array([...body, 32])), WebhookVerificationError);
