// Reads billing events as the API lists them: oldest first, each in exactly one window.

import { read } from "../api.mjs";
import { windowOf } from "../time_window.mjs";

const MOST_PAGES = 20; // that `next` reads before it answers with what it has

/**
 * What the address selects. `external_entity_ids` and `api_keys` are the API's; the API has no filter for slugs, so
 * `model_slug` is applied here.
 */
export function filterOf(query) {
  const all = (...names) => [...new Set(names.flatMap((name) => query.getAll(name)))].filter(Boolean);
  return {
    ...windowOf(query, "1h"),
    external_entity_ids: all("external_entity_ids", "external_entity_id"),
    api_keys: all("api_keys", "api_key_prefix"),
    model_slug: query.get("model_slug") ?? "",
  };
}

/** The filter's parameters for an address. */
export function addressOf({ last, start_time, end_time, external_entity_ids, api_keys, model_slug }) {
  return { ...(last ? { last } : { start_time, end_time }), external_entity_ids, api_keys, model_slug };
}

/** The events of `filter`, page after page. `window` is what the API answered: final. */
export class EventReader {
  constructor(filter, limit = 100) {
    this.filter = filter;
    this.limit = filter.model_slug ? 1000 : limit;
    this.wanted = limit;
    this.cursor = null;
    this.isDone = false;
    this.window = null;
  }

  /** One page of the API, without the events of other slugs. */
  async page(signal) {
    const { start_time, end_time, external_entity_ids, api_keys, model_slug } = this.filter;
    const first = { start_time, end_time, external_entity_ids, api_keys, limit: this.limit };
    const found = await read("/v1/gateway/events", this.cursor ? { cursor: this.cursor } : first, { signal });
    this.cursor = found.pagination.cursor;
    this.isDone = this.cursor === null;
    this.window = found.window;
    return model_slug ? found.items.filter((event) => event.modelSlug === model_slug) : found.items;
  }

  /** About as many events as `limit`, unless there are no more or few match. */
  async next() {
    const events = [];
    for (let at = 0; at < MOST_PAGES && !this.isDone && events.length < this.wanted; at += 1) events.push(...(await this.page()));
    return events;
  }
}
