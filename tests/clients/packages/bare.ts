// The types that openapi-typescript generates with its default options, and openapi-fetch: nothing of ours.

import createClient from "openapi-fetch";
import type { paths } from "./schema.js";

const headers = { Authorization: `Bearer ${process.env.TOLLGATE_API_KEY}` };
const client = createClient<paths>({ baseUrl: process.env.TOLLGATE_URL!, headers });
const body = { metadata: { external_entity_id: "bare" }, models: [{ slug: process.env.SLUG! }] };
const { data, error } = await client.POST("/v1/gateway/groups", { body });
if (error) throw new Error(error.code);
const { data: page } = await client.GET("/v1/gateway/groups", { params: { query: { external_entity_id: "bare" } } });
if (page?.items[0]?.id !== data.id) throw new Error("the group is not listed");
