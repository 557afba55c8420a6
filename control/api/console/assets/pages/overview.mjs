// Overview: what the gateway does now: calls, errors, tokens and times, by slug.

import { read, withQuery } from "../api.mjs";
import { timeChart } from "../chart.mjs";
import { h, redraw } from "../dom.mjs";
import { brief, count, milliseconds, percent, time } from "../format.mjs";
import { copyable } from "../form.mjs";
import { keepFresh } from "../live.mjs";
import { nothing } from "../notice.mjs";
import { table } from "../table.mjs";
import { tile, tiles } from "../tiles.mjs";
import { errorRate } from "./error_rate.mjs";
import { healthCard } from "./overview_health.mjs";

const PERIODS = { hour: "Last hour", day: "Last day", month: "Last month" };
const BUSIEST = 10; // slugs whose times are drawn; a series has 7 kB

/** Draws the page. `?period=`; `?slug=` for one slug; `?end=` for a period that is over. */
export async function draw(main, { session, query }) {
  const period = Object.hasOwn(PERIODS, query.get("period") ?? "") ? query.get("period") : "hour";
  const slug = query.get("slug");
  const end = query.get("end");
  const part = h("div");
  const moves = h("span.moves");
  if (!slug && !end) main.append(healthCard());
  main.append(toolbar(period, slug, moves), part);
  const sort = { by: "Calls", descending: true, changed: () => fresh.now() };
  const load = async () => {
    const asked = { period, slug, end_time: end };
    const [all, busiest] = await Promise.all([
      read("/v1/gateway/traffic", { ...asked, series: false }),
      read("/v1/gateway/traffic", { ...asked, limit: BUSIEST }),
    ]);
    return { ...all, busiest: busiest.items };
  };
  const cards = h("div.cards");
  const fresh = keepFresh(part, period === "hour" && !end ? 5 : 15, load, (traffic) => {
    redraw(moves, steps(traffic, period, slug, end));
    if (traffic.items.length === 0) return slug || end ? noCalls(slug, period, end) : firstCall(session, period);
    return [totals(traffic), charts(cards, traffic), h("h2", {}, "By slug"), bySlug(traffic, period, sort)];
  });
}

function toolbar(period, slug, moves) {
  const choices = Object.entries(PERIODS).map(([name, text]) =>
    h("a.button", { href: address(name, slug), "aria-current": name === period && "page" }, text),
  );
  return h(
    "div.toolbar",
    {},
    h("div.choices", { role: "group", "aria-label": "Period" }, choices),
    moves,
    slug && h("span", {}, "Only ", h("code", {}, slug)),
    slug && h("a", { href: address(period, null) }, "Show all slugs"),
    linksOf(slug),
  );
}

/** Which time is shown, and the way to earlier ones. A month is as much as is kept. */
function steps({ start_time, end_time }, period, slug, end) {
  if (period === "month") return null;
  return [
    h("a.button", { href: address(period, slug, start_time), "data-key": "earlier" }, "← Earlier"),
    end && h("span", {}, time(start_time), " to ", time(end_time)),
    end && h("a.button", { href: address(period, slug), "data-key": "now" }, "Now →"),
  ];
}

/** A slug has a `/`; anything else is the id of a model that is called directly. */
function linksOf(slug) {
  if (!slug) return null;
  const value = encodeURIComponent(slug);
  if (!slug.includes("/")) return h("a", { href: `/console/models?id=${value}` }, "Model");
  return [
    h("a", { href: `/console/endpoints?slug=${value}` }, "Endpoint"),
    h("a", { href: `/console/events?model_slug=${value}` }, "Events"),
    h("a", { href: `/console/playground?slug=${value}` }, "Call it"),
  ];
}

function address(period, slug, end = null) {
  return withQuery("/console/overview", { period, slug, end });
}

function totals({ items, start_time, end_time }) {
  const sum = (...names) => items.reduce((all, item) => names.reduce((part, name) => part + item[name], all), 0);
  const [calls, errors, refusals] = [sum("calls"), sum("errors"), sum("refusals")];
  const input = sum("uncached_input_tokens", "cached_input_tokens");
  const minutes = Math.max(1, (new Date(end_time) - new Date(start_time)) / 60_000);
  const output = sum("output_tokens");
  return tiles(
    tile("Calls", brief(calls), perMinute(calls / minutes), count(calls)),
    tile("Errors", brief(errors), [errorRate(errors, calls), " of calls"], count(errors)),
    tile("Refusals", brief(refusals), `${percent(refusals, calls)} of calls`, count(refusals)),
    tile("Tokens", brief(input + output), `${brief(input)} in, ${brief(output)} out`, count(input + output)),
    tile("From cache", percent(sum("cached_input_tokens"), input), "of input tokens"),
    firstByte(items),
  );
}

/** Medians cannot be added up: of several slugs, the slowest and the fastest are shown. */
function firstByte(items) {
  const known = items.filter((item) => item.first_byte_ms);
  if (known.length === 1) {
    const { p50, p95, p99 } = known[0].first_byte_ms;
    return tile("Time to first byte", milliseconds(p50), `p95 ${milliseconds(p95)}, p99 ${milliseconds(p99)}`);
  }
  const medians = known.map((item) => item.first_byte_ms.p50);
  const slowest = known.length ? milliseconds(Math.max(...medians)) : "–";
  return tile("Time to first byte", slowest, known.length ? `p50 of the slowest slug; fastest ${milliseconds(Math.min(...medians))}` : "no answers");
}

function perMinute(rate) {
  return rate >= 60 ? `${(rate / 60).toFixed(1)} a second` : `${rate.toFixed(rate < 10 ? 1 : 0)} a minute`;
}

/** `busiest`: the busiest slugs, and the sum of all others. Medians of slugs cross each other: one slug is drawn at a time. */
function charts(cards, { busiest: items }) {
  const times = items[0].series.map((step) => new Date(step.start_time));
  const sums = (value) => times.map((_, at) => items.reduce((sum, { series }) => sum + value(series[at]), 0));
  const calls = [
    { name: "answered", tone: "a", values: sums((step) => Math.max(0, step.calls - step.errors - step.refusals)) },
    { name: "refused", tone: "c", values: sums((step) => step.refusals) },
    { name: "failed", tone: "bad", values: sums((step) => step.errors) },
  ];
  const tokens = [{ name: "tokens", tone: "b", values: sums((step) => step.tokens) }];
  const waits = items.map(({ slug, series }) => ({ name: nameOf({ slug }), tone: "a", values: series.map((step) => step.first_byte_p50_ms) }));
  redraw(
    cards,
    timeChart("Calls", times, calls, { kind: "bars" }),
    timeChart("Tokens", times, tokens, { kind: "bars" }),
    timeChart("Time to first byte (p50)", times, waits, { format: milliseconds, choose: "Slug" }),
  );
  return cards;
}

function bySlug({ items }, period, sort) {
  const wait = (name) => ({
    head: name,
    number: true,
    value: (item) => item.first_byte_ms?.[name] ?? -1,
    cell: (item) => milliseconds(item.first_byte_ms?.[name]),
  });
  const figures = (head, name) => ({ head, number: true, value: (item) => item[name], cell: (item) => count(item[name]) });
  const columns = [
    { head: "Slug", value: nameOf, cell: (item) => (item.slug ? h("a", { href: address(period, item.slug) }, item.slug) : nameOf(item)) },
    figures("Calls", "calls"),
    { head: "Error rate", number: true, value: (item) => item.errors / (item.calls || 1), cell: (item) => errorRate(item.errors, item.calls) },
    figures("Errors", "errors"),
    figures("Refusals", "refusals"),
    figures("Input", "uncached_input_tokens"),
    figures("Cached input", "cached_input_tokens"),
    figures("Output", "output_tokens"),
    wait("p50"),
    wait("p95"),
    wait("p99"),
  ];
  return table("Traffic by slug: calls, tokens, and time to first byte", columns, items, { key: "traffic", sort });
}

/** Of calls without a slug of their own, such as lists of models, and of the slugs beyond the busiest: their sum. */
function nameOf({ slug }) {
  return slug ?? "Everything else";
}

function noCalls(slug, period, end) {
  return nothing("No call", slug && [" of ", h("code", {}, slug)], end ? " in this time." : ` in the ${PERIODS[period].toLowerCase()}.`);
}

function firstCall(session, period) {
  const url = session.inference_url ?? "https://YOUR-GATEWAY";
  const body = `{"model": "${session.workspace.prefixes[0] ?? "acme"}/chat", "messages": [{"role": "user", "content": "Hello"}]}`;
  const command = `curl ${url}/v1/chat/completions -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" -d '${body}'`;
  return h(
    "section.card",
    {},
    h("h2", {}, `No calls in the ${PERIODS[period].toLowerCase()}`),
    h("p", {}, "This page shows a call within seconds. To make one:"),
    h(
      "ol",
      {},
      h("li", {}, h("a", { href: "/console/endpoints?new=1" }, "Create an endpoint"), ": it maps a slug to an upstream."),
      h("li", {}, h("a", { href: "/console/groups?new=1" }, "Create a group"), ": it says who may call the slug, and how much."),
      h("li", {}, "Open the group and ", h("a", { href: "/console/groups" }, "create a key"), " for it."),
      h("li", {}, "Call the slug with that key: in the ", h("a", { href: "/console/playground" }, "playground"), ", or from a terminal:"),
    ),
    copyable(command, "A first call"),
  );
}
