// Makes the calls that its arguments name at a scripted server, and prints what became of each.

import { ok, tollgate, TollgateError } from "tollgate-client";

const retries = { firstWait: 0.01, longestWait: 2 };
const client = tollgate({ baseUrl: process.env.TOLLGATE_URL!, apiKey: process.env.TOLLGATE_API_KEY!, retries });
const body = { type: "WORKSPACE_INVOKE" } as const;
const calls: Record<string, () => Promise<unknown>> = {
  read: () => client.GET("/v1/gateway/groups"),
  create: () => client.POST("/v1/api_keys", { body }),
  create_own: () => client.POST("/v1/api_keys", { body, params: { header: { "Idempotency-Key": "own" } } }),
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
