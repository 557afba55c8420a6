// Calls a scripted server, and prints what became of each call, for tests/clients/packages: one line each.

import { ok, tollgate, TollgateError } from "tollgate-client";

const retries = { firstWait: 0.01, longestWait: 2 };
const client = tollgate({ baseUrl: process.env.TOLLGATE_URL!, apiKey: process.env.TOLLGATE_API_KEY!, retries });
const body = { metadata: { external_entity_id: "e" }, models: [] };
const calls: Record<string, () => Promise<unknown>> = {
  read: () => client.GET("/v1/gateway/groups"),
  create: () => client.POST("/v1/gateway/groups", { body, headers: { "Idempotency-Key": "own" } }),
  act: () => client.POST("/v1/models/{model_id}/deployments/{deployment_id}/retry", {
    params: { path: { model_id: "m", deployment_id: "d" } },
  }),
};
for (const call of process.argv.slice(2)) {
  try {
    await ok(calls[call]!() as Promise<{ data?: unknown }>);
    console.log("ok");
  } catch (error) {
    if (!(error instanceof TollgateError)) throw error;
    console.log(error.code);
  }
}
