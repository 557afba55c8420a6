// Prices: what calls of each slug cost, since when, and what comes. `?slug=` those of one; `?new=1` a form for one more.

import { read, readAll, send, withQuery } from "../api.mjs";
import { confirmed } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { count } from "../format.mjs";
import { field } from "../form.mjs";
import { announce, nothing, problemNotice, remark } from "../notice.mjs";
import { table } from "../table.mjs";
import { ownerBadge, ownerWarning } from "./groups_data.mjs";
import { priceForm, TODAY } from "./prices_form.mjs";

const PATH = "/v1/gateway/prices";
const MOST = 10_000;
const addressOf = (slug) => withQuery("/console/prices", { slug });

/** Draws the page. */
export async function draw(main, { query }) {
  const slug = query.get("slug");
  if (query.has("new")) {
    const form = priceForm({ slug: slug ?? "", valid_from: query.get("valid_from") ?? TODAY }, store, { isNew: true });
    return main.append(allPrices(), h("h2", {}, "New price"), form);
  }
  return slug ? drawSlug(main, slug) : drawList(main);
}

const allPrices = () => h("p", {}, h("a", { href: "/console/prices" }, "All prices"));

async function store(price) {
  await send("PUT", PATH, price);
  location.assign(addressOf(price.slug));
}

/** The price that holds today; prices are in the order of their dates. */
const inForce = (prices) => prices.findLast((one) => one.valid_from <= TODAY) ?? null;
const comingOf = (prices) => prices.filter((one) => one.valid_from > TODAY);

async function drawList(main) {
  const bySlug = Map.groupBy((await readAll(PATH, {}, MOST)).items, (one) => one.slug);
  const missing = h("div");
  const search = h("input", { type: "search", autocomplete: "off", spellcheck: "false", oninput: () => show() });
  const list = h("div");
  function show() {
    const rows = [...bySlug].filter(([slug]) => slug.includes(search.value.trim()));
    list.replaceChildren(rows.length ? priceTable(rows) : nothing(bySlug.size ? "No slug with a price has this in its name." : "No price yet. Calls without a price are in no amount and are counted as unpriced."));
  }
  show();
  main.append(
    h("p.soft", {}, "What calls through a slug cost, from a UTC date until the slug's next price. Direct calls of models, asynchronous requests and training have no price."),
    h("div.toolbar", {}, field("Slug", search), h("a.button", { href: "/console/prices?new=1", needs: "prices" }, "New price")),
    missing,
    h("h2", {}, "Prices"),
    list,
  );
  await drawMissing(missing, bySlug);
}

/** Adding up a month may take seconds, and may fail where its events are deleted: prices are shown anyhow. */
async function drawMissing(place, bySlug) {
  const report = { start: `${TODAY.slice(0, 7)}-01T00:00:00Z`, group_by: "slug", order_by: "unpriced_calls", limit: 100 };
  try {
    const [{ items }, endpoints] = await Promise.all([read("/v1/gateway/usage_report", report), readAll("/v1/gateway/endpoints", {}, MOST)]);
    place.replaceChildren(...unpriced(items, endpoints.items, bySlug));
  } catch (error) {
    place.replaceChildren(problemNotice(error));
  }
}

/** What costs nothing by mistake: slugs with unpriced calls this month, and endpoints that have no price today. */
function unpriced(items, endpoints, bySlug) {
  const calls = new Map(items.filter((one) => one.unpriced_calls > 0).map((one) => [one.slug, one.unpriced_calls]));
  for (const { slug } of endpoints) if (!inForce(bySlug.get(slug) ?? []) && !calls.has(slug)) calls.set(slug, 0);
  if (calls.size === 0) return [];
  const columns = [
    { head: "Slug", cell: ([slug]) => h("code", {}, slug) },
    { head: "Unpriced calls this month", number: true, cell: ([, unpricedCalls]) => h(unpricedCalls ? "span.bad-text" : "span", {}, count(unpricedCalls)) },
    { head: "Actions", cell: ([slug, unpricedCalls]) => h("a", { href: withQuery("/console/prices", { new: 1, slug, valid_from: unpricedCalls ? `${TODAY.slice(0, 7)}-01` : TODAY }), "aria-label": `Set a price of ${slug}`, class: "nowrap" }, "Set a price") },
    { head: "Now", cell: ([slug]) => stateOf(bySlug.get(slug) ?? []) },
  ];
  return [
    h("h2", {}, "Without a price"),
    h("p.soft", {}, "Their calls are in no amount. A price from the first of the month counts the calls since then, too."),
    table("Slugs without a price", columns, [...calls]),
  ];
}

function stateOf(prices) {
  const now = inForce(prices);
  const [next] = comingOf(prices);
  if (now) return h("span.badge.good", {}, `since ${now.valid_from}`);
  return h("span.badge.warn", {}, next ? `none until ${next.valid_from}` : "none");
}

function priceTable(rows) {
  const amount = (name) => ([, prices]) => inForce(prices)?.[name] ?? "–";
  const columns = [
    { head: "Slug", cell: ([slug]) => h("a", { href: addressOf(slug) }, slug) },
    { head: "In force", cell: ([, prices]) => stateOf(prices) },
    { head: "Currency", cell: amount("currency") },
    { head: "Input per million", number: true, cell: amount("input_per_million") },
    { head: "Output", number: true, cell: amount("output_per_million") },
    { head: "Per call", number: true, cell: amount("per_call") },
    { head: "Next", cell: ([, prices]) => comingOf(prices).map((one) => one.valid_from).join(", ") || "–" },
  ];
  return table("Prices", columns, rows);
}

async function drawSlug(main, slug) {
  const { items } = await readAll(PATH, { slug }, MOST);
  const now = inForce(items);
  main.append(
    allPrices(),
    h("h2", {}, slug),
    h(
      "div.toolbar",
      {},
      h("a.button", { href: withQuery("/console/prices", { new: 1, slug }), needs: "prices" }, "New price"),
      h("a.button", { href: withQuery("/console/endpoints", { slug }) }, "Endpoint"),
    ),
    now ? "" : remark("warn", "No price is in force: calls of this slug are in no amount and are counted as unpriced."),
    ...items.toReversed().map((price, at) => priceCard(price, price === now, items.length - 1 - at, items)),
  );
}

function priceCard(price, isInForce, at, items) {
  const until = items[at + 1]?.valid_from;
  const editor = h("div");
  const isComing = price.valid_from > TODAY;
  const badge = isInForce ? h("span.badge.good", {}, "in force") : isComing ? h("span.badge.warn", {}, "comes") : h("span.badge", {}, "past");
  const edit = () => editor.replaceChildren(ownerWarning(price) ?? "", priceForm(price, store, { cancel: () => editor.replaceChildren() }));
  return h(
    "section.card",
    { "aria-label": `Price from ${price.valid_from}` },
    h("h3", {}, `From ${price.valid_from}${until ? ` until ${until}` : ""} `, badge, " ", ownerBadge(price)),
    facts(price),
    h(
      "p.actions",
      {},
      h("button", { type: "button", needs: "prices", "aria-label": `Change the price from ${price.valid_from}`, onclick: edit }, "Change"),
      h("button.danger", { type: "button", needs: "prices", "aria-label": `Delete the price from ${price.valid_from}`, onclick: () => remove(price, items[at - 1], isComing) }, "Delete"),
    ),
    editor,
  );
}

async function remove(price, before, isComing) {
  const then = before ? `the price from ${before.valid_from}` : "no price, and are counted as unpriced";
  const what = h(
    "div",
    {},
    h("p", {}, `Calls from ${price.valid_from} on then have ${then}.`),
    isComing ? null : h("p", {}, "This changes what reports and statements say of the time since then. To end a price and leave the past as it was, set a new one, of 0 if calls are to cost nothing, from the day on which it ends."),
    ownerWarning(price),
  );
  const isDone = await confirmed("Delete this price?", what, "Delete", () => send("DELETE", withQuery(PATH, { slug: price.slug, valid_from: price.valid_from })));
  if (!isDone) return;
  announce("The price is deleted");
  location.reload();
}

const NAMES = {
  input_per_million: "Input", cached_input_per_million: "Cached input", cache_write_per_million: "Cache writes", cache_write_1h_per_million: "Cache writes for an hour",
  audio_input_per_million: "Sound in the input", image_input_per_million: "Pictures in the input", output_per_million: "Output", audio_output_per_million: "Sound in the output",
  image_output_per_million: "Pictures in the output", per_call: "Per call", per_server_tool_call: "Per call of a vendor's tool",
};

/** Every member of a price; those per million tokens say so once. */
function facts(price) {
  const { long_context: long, service_tiers: tiers } = price;
  const rows = Object.entries(NAMES).map(([name, title]) => [title, `${price[name]} ${price.currency}${name.endsWith("per_million") ? " per million tokens" : ""}`]);
  if (long) rows.push([`Above ${count(long.above_input_tokens)} input tokens`, `input ${long.input_per_million}, cached input ${long.cached_input_per_million}, cache writes ${long.cache_write_per_million}, output ${long.output_per_million} ${price.currency} per million tokens`]);
  for (const [tier, { multiplier }] of Object.entries(tiers ?? {})) rows.push([`Service tier ${tier}`, `tokens × ${multiplier}`]);
  if (price.max_input_tokens) rows.push(["Most input", `${count(price.max_input_tokens)} tokens`]);
  if (price.max_output_tokens) rows.push(["Most output", `${count(price.max_output_tokens)} tokens`]);
  return h("dl.facts", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
