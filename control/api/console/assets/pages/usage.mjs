// A customer's usage: one group's own figures, limits and keys. Reached by the group's key, or embedded by a signed link.

import { Problem, read } from "../api.mjs";
import { timeChart, usageBar } from "../chart.mjs";
import { h, redraw } from "../dom.mjs";
import { ago, brief, count, time } from "../format.mjs";
import { drawPlainFrame } from "../layout.mjs";
import { limitBars } from "../limit_bars.mjs";
import { keepFresh } from "../live.mjs";
import { nothing, remark } from "../notice.mjs";
import { table } from "../table.mjs";
import { tile, tiles } from "../tiles.mjs";
import { downloads, hasBelow } from "./usage_downloads.mjs";
import { managedKeys } from "./usage_keys.mjs";
import { refusedCalls } from "./usage_requests.mjs";

const REFRESH_S = 10;
const BALANCE_HEADS = { credited: "Credited", spent: "Spent", reserved: "Calls in flight", available: "Available" };
const GONE = new Set([401, 403, 404, 410]);
const monthName = new Intl.DateTimeFormat("en-GB", { month: "long", timeZone: "UTC" });

/** Draws the page. `session`: null is the embedded page, which the address's token opens. */
export async function draw(session) {
  if (session && session.kind !== "FEDERATED") return drawForOperators(session);
  const main = session ? drawPlainFrame("Usage", session) : drawEmbeddedFrame();
  const path = session ? "/console/usage" : location.pathname;
  try {
    show(main, path, await read(`${path}/data`), session);
  } catch (error) {
    if (session || !(error instanceof Problem) || !GONE.has(error.status)) throw error;
    main.append(remark("warn", h("p", {}, "This link has expired, or it was withdrawn."), h("p", {}, "Open the page again where you found it, or ask for a new link.")));
  }
}

function show(main, path, first, session) {
  const heading = main.querySelector("h1");
  const cards = h("div.cards");
  let loaded = first;
  let latest = first;
  keepFresh(main, REFRESH_S, async () => {
    latest = loaded ?? (await read(`${path}/data`));
    loaded = null;
    return latest;
  }, (data) => {
    const name = data.group.name ?? data.group.external_entity_id;
    heading.textContent = `Usage of ${name}`;
    document.title = `Usage of ${name}`;
    return [figuresAge(data), figures(data), limits(data.limits), spendLimits(data.spend_limits), balance(data.balance), days(cards, data.days), slugs(data.slugs), first.manages_keys ? null : keys(data.keys)];
  });
  if (first.manages_keys) main.append(managedKeys(session, (prefix) => latest.keys.find((key) => key.prefix === prefix)?.calls ?? 0));
  main.append(refusedCalls(path), downloads(path, () => latest));
}

/** Why totals and limits differ for a moment: totals count what is billed for good, limits what has been used. */
function figuresAge({ as_of: at }) {
  return h("p.soft", {}, "Totals, days, slugs and keys count the calls that ended before ", time(at), ". Limits count the calls since then, too, so they may be ahead until those are final, too. Days and months are those of UTC.");
}

/** Nothing but a title: the page around it says the rest. Its colours are the system's, as that page's are. */
function drawEmbeddedFrame() {
  document.documentElement.dataset.theme = "";
  document.title = "Usage";
  const main = h("main.alone", { id: "main" }, h("h1", {}, "Usage"));
  document.body.replaceChildren(main);
  return main;
}

function drawForOperators(session) {
  const main = drawPlainFrame("Usage", session);
  main.append(
    remark(
      "",
      h("p", {}, "This page shows a customer the usage of their group. It opens with the group's key, or with a link that you make for the group."),
      h("p", {}, "You are logged in with a workspace key: ", h("a", { href: "/console/groups" }, "Groups"), " shows the usage of every group, and makes links."),
    ),
  );
}

const tokensOf = (one) => one.uncached_input_tokens + one.cached_input_tokens + one.output_tokens;

function figures({ days, totals: { day, month } }) {
  const ofMonth = `in ${monthName.format(new Date(`${days.at(-1).date}T00:00:00Z`))}`;
  const rows = [["", day, month]];
  if (hasBelow([day, month])) rows.push([", with groups below", day.with_groups_below, month.with_groups_below]);
  return rows.map(([whose, ofDay, inMonth]) =>
    tiles(
      figure(`Calls today${whose}`, ofDay.calls),
      figure(`Tokens today${whose}`, tokensOf(ofDay)),
      figure(`Calls ${ofMonth}${whose}`, inMonth.calls),
      figure(`Tokens ${ofMonth}${whose}`, tokensOf(inMonth)),
      hasCost(ofDay) && [costFigure(`Cost today${whose}`, ofDay), costFigure(`Cost ${ofMonth}${whose}`, inMonth)],
    ),
  );
}

// Figures have it where the operator lets customers see money (TOLLGATE_PORTAL_COST).
const hasCost = (sums) => "cost" in sums;
const amountsOf = ({ cost }) => Object.entries(cost ?? {}).map(([currency, amount]) => `${amount} ${currency}`).join(", ");
const unpricedOf = ({ unpriced_calls: unpriced }) => (unpriced ? `${count(unpriced)} calls without a price` : "");
const costText = (sums) => [amountsOf(sums), unpricedOf(sums)].filter(Boolean).join(", ") || "–";
const costFigure = (name, sums) => tile(name, amountsOf(sums) || "–", unpricedOf(sums) || null);
const figure = (name, value) => tile(name, brief(value), null, count(value));

function limits(items) {
  return [h("h2", {}, "Limits"), items.length ? limitBars("Limits", items, { source: sourceOf(items) }) : nothing("No limit binds your calls.")];
}

/** Bars of the spend limits that bind the group; nothing where there are none, or money is not shown. */
function spendLimits(items = []) {
  if (items.length === 0) return null;
  const name = ({ unit }) => `spend a ${unit.toLowerCase()}`;
  const columns = [
    { head: "Limit", cell: name },
    { head: "Spent", cell: (item) => (item.spent === null ? `of ${item.amount} ${item.currency}` : usageBar(name(item), Number(item.spent), Number(item.amount), `${item.spent} of ${item.amount} ${item.currency}`)) },
    { head: "Calls in flight", number: true, cell: ({ reserved }) => reserved ?? "–" },
    { head: "Remaining", number: true, cell: ({ remaining }) => remaining ?? "–" },
    { head: "Resets at", cell: ({ reset_at: at }) => (at === null ? "–" : time(at)) },
    ...(items.some(({ own }) => !own) ? [{ head: "Scope", cell: ({ own }) => (own ? "own" : "shared") }] : []),
  ];
  return [h("h2", {}, "Spend limits"), table("Spend limits", columns, items)];
}

function balance(one = null) {
  if (one === null) return null;
  const columns = ["credited", "spent", "reserved", "available"].map((member) => ({ head: BALANCE_HEADS[member], number: true, cell: (figures) => `${figures[member]} ${figures.currency}` }));
  return [h("h2", {}, "Prepaid balance"), table("Prepaid balance", columns, [one])];
}

// Only where some are of a group above: whose limits they are says nothing to others.
function sourceOf(items) {
  return items.some((item) => item.own === false) ? ({ own }) => (own === false ? "shared" : "own") : null;
}

function days(cards, all) {
  const times = all.map(({ date }) => new Date(`${date}T00:00:00Z`));
  const series = (name, tone, member) => ({ name, tone, values: all.map((day) => day[member]) });
  const tokens = [series("input", "a", "uncached_input_tokens"), series("cached input", "b", "cached_input_tokens"), series("output", "c", "output_tokens")];
  redraw(
    cards,
    timeChart("Calls per day", times, [series("calls", "a", "calls")], { kind: "bars" }),
    timeChart("Tokens per day", times, tokens, { kind: "bars" }),
  );
  return cards;
}

function slugs(items) {
  const columns = [
    { head: "Slug", cell: ({ slug }) => h("code", {}, slug) },
    { head: "Calls", number: true, cell: ({ calls }) => count(calls) },
    { head: "Input tokens", number: true, cell: (one) => count(one.uncached_input_tokens) },
    { head: "Cached input tokens", number: true, cell: (one) => count(one.cached_input_tokens) },
    { head: "Output tokens", number: true, cell: (one) => count(one.output_tokens) },
    ...(items.some(hasCost) ? [{ head: "Cost", number: true, cell: costText }] : []),
    ...(hasBelow(items) ? [{ head: "Calls with groups below", number: true, cell: (one) => count(one.with_groups_below.calls) }] : []),
  ];
  return [h("h2", {}, "By slug, in 31 days"), items.length ? table("Usage by slug in 31 days", columns, items) : nothing("No calls in 31 days.")];
}

function keys(items) {
  const columns = [
    { head: "Key", cell: ({ prefix }) => h("code", {}, prefix) },
    { head: "Name", cell: ({ name }) => name ?? "–" },
    { head: "Created", cell: ({ created_at: at }) => time(at) },
    { head: "Last used", cell: ({ last_used_at: at }) => (at ? ago(at) : "never") },
    { head: "Calls in 31 days", number: true, cell: ({ calls }) => count(calls) },
  ];
  return [h("h2", {}, "Keys"), items.length ? table("Keys", columns, items) : nothing("The group has no keys.")];
}
