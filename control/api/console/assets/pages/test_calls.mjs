// Test calls of the console: a group of their own makes them, so they are billed and limited, but are no customer's.

import { Problem, read, route, send } from "../api.mjs";
import { h } from "../dom.mjs";
import { relayWhole } from "../relay.mjs";

/** The external id of the group. Figures by customer show test calls under it. */
export const TEST_ENTITY = "console-test";
/** What stands beside the group where customers are listed, or nothing. */
export const testBadge = (externalEntityId) => externalEntityId === TEST_ENTITY && [" ", h("span.badge", {}, "test calls, no customer")];
const KEY_NAME = "test calls";
const LEARN_MS = 10_000;
const PAUSE_MS = 300;
const STALE_MS = 86_400_000; // keys of pages that the browser ended without a word

/**
 * A new key of the group that may call `slug`: `{apiKey, prefix, group, end()}`, once the proxies know it. `end` revokes
 * it; so does leaving the page.
 */
export async function testKey(slug) {
  const group = await admit(slug);
  const path = route`/v1/gateway/groups/${group.id}/api_keys`;
  await revokeStale(path);
  const { api_key: apiKey, prefix } = await send("POST", path, { name: KEY_NAME });
  const own = `${path}/${prefix}`;
  const leave = () => fetch(own, { method: "DELETE", keepalive: true });
  addEventListener("pagehide", leave);

  async function end() {
    removeEventListener("pagehide", leave);
    await send("DELETE", own);
  }

  await untilKnown(slug, apiKey);
  return { apiKey, prefix, group, end };
}

/** The group, with `slug` among those that it may call. The first test makes it. */
export async function admit(slug) {
  const group = await testGroup();
  if (group === null) return create(slug);
  if (group.models.some((one) => one.slug === slug)) return group;
  return send("PATCH", route`/v1/gateway/groups/${group.id}`, { models: [...group.models, { slug }] });
}

/** Take `slug` from what the group may call. */
export async function withdraw(slug) {
  const group = await testGroup();
  const models = group?.models.filter((one) => one.slug !== slug);
  if (group && models.length < group.models.length) await send("PATCH", route`/v1/gateway/groups/${group.id}`, { models });
}

async function testGroup() {
  return (await read("/v1/gateway/groups", { external_entity_id: TEST_ENTITY, limit: 1 })).items[0] ?? null;
}

async function create(slug) {
  try {
    return await send("POST", "/v1/gateway/groups", { metadata: { external_entity_id: TEST_ENTITY, name: "Test calls of the console" }, models: [{ slug }] });
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 409) throw error;
    return admit(slug); // another page made it meanwhile
  }
}

async function revokeStale(path) {
  const { items } = await read(path, { limit: 100 });
  const stale = items.filter((key) => key.name === KEY_NAME && Date.now() - Date.parse(key.created_at) > STALE_MS);
  for (const key of stale) await send("DELETE", `${path}/${key.prefix}`);
}

/** Proxies learn of a key and a slug within about a second. Their list of slugs, which counts as no call, says when. */
async function untilKnown(slug, apiKey) {
  const end = performance.now() + LEARN_MS;
  while (performance.now() < end) {
    const { status, body } = await relayWhole({ method: "GET", path: "/v1/models", apiKey });
    if (status === 200 && body?.data?.some((one) => one.id === slug)) return;
    await new Promise((resume) => setTimeout(resume, PAUSE_MS));
  }
}
