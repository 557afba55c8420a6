// The limits that bind a group, as they fill; and who fills them.

import { readAll, read, route } from "../api.mjs";
import { usageBar } from "../chart.mjs";
import { openDialog } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { clockTime, count, duration, percent } from "../format.mjs";
import { keepFresh } from "../live.mjs";
import { amountOf, isConcurrent, kindText, nounOf, RATE_UNITS, TYPES } from "../limit_kinds.mjs";
import { nothing, problemNotice } from "../notice.mjs";
import { table } from "../table.mjs";
import { groupLink } from "./groups_data.mjs";
import { nameOf } from "./groups_rules.mjs";

const REFRESH_S = 3;
const AT_ONCE = 200;
const MOST_USERS = 100;

/** The element with the bars. `ancestors`: the groups above; `tree`: a promise of the `Tree`. */
export function drawLimits(group, ancestors, tree) {
  const byId = new Map([group, ...ancestors].map((one) => [one.id, one]));
  const place = h("div");
  let wanted = AT_ONCE;
  const load = () => readAll(route`/v1/gateway/groups/${group.id}/limits`, {}, wanted);
  const fresh = keepFresh(place, REFRESH_S, load, ({ items, hasMore }) => {
    const showMore = () => ((wanted += AT_ONCE), fresh.now());
    return [
      withoutLimits(group, items, hasMore),
      bySlug(items).map(([slug, limits]) => slugSection(slug, limits, { group, byId, tree })),
      hasMore && h("button", { type: "button", "data-key": "more limits", onclick: showMore }, "Show more limits"),
    ];
  });
  return place;
}

function bySlug(items) {
  const found = new Map();
  for (const item of items) found.set(item.slug, [...(found.get(item.slug) ?? []), item]);
  return [...found];
}

function withoutLimits(group, items, hasMore) {
  if (group.models.length === 0) return nothing("This group may call no slug. Edit it to give it some.");
  const limited = new Set(items.map((item) => item.slug));
  const free = hasMore ? [] : group.models.filter(({ slug }) => !limited.has(slug));
  if (free.length === 0) return null;
  const said = free.slice(0, 20).flatMap(({ slug }, at) => [at > 0 && ", ", slugLink(slug)]);
  return h("p", {}, "Without any limit: ", said, free.length > 20 && ` and ${count(free.length - 20)} more`, ".");
}

const slugLink = (slug) => h("a", { href: `/console/endpoints?slug=${encodeURIComponent(slug)}` }, slug);

function slugSection(slug, limits, { group, byId, tree }) {
  const who = (id) => (id === group.id ? "this group" : byId.has(id) ? groupLink(byId.get(id)) : h("code", {}, id));
  const columns = [
    { head: "Limit", cell: (item) => kindText(item) },
    { head: "Used", cell: (item) => usageBar(`${kindText(item)} of ${slug}`, item.current_usage, item.threshold) },
    { head: "Binding", cell: bindsBadge },
    { head: "Set by", cell: (item) => who(item.source_group) },
    { head: "Counted in", cell: (item) => who(item.counting_group) },
    { head: "Resets in", number: true, cell: (item) => (item.resets_in_s === null ? "–" : duration(item.resets_in_s)) },
    { head: "Top users", cell: (item) => topUsers(item, byId.get(item.counting_group), group, tree) },
  ];
  return h("section", {}, h("h3", {}, slugLink(slug)), table(`Limits of ${slug}`, columns, limits, { key: `limits ${slug}` }));
}

/** Text besides colour: whether this limit has the least left and so refuses first, and whether it does so now. */
function bindsBadge({ binds, current_usage: used, threshold }) {
  if (used >= threshold) return h("span.badge.bad", {}, binds ? "full, refuses now" : "full");
  return binds ? h(`span.badge${used >= 0.8 * threshold ? ".warn" : ""}`, {}, "binding") : "";
}

function topUsers(item, counting, group, tree) {
  const key = `who ${item.slug} ${item.type} ${item.unit} ${item.counting_group}`;
  const label = `Show the top users of the ${kindText(item)} of ${item.slug} in ${counting ? nameOf(counting) : item.counting_group}`;
  async function show() {
    await openDialog("Top users today", () => topUsersOf(item, counting ?? group, tree));
    document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus(); // the button was drawn anew meanwhile
  }
  return h("button", { type: "button", "data-key": key, "aria-label": label, onclick: show }, "Show");
}

function topUsersOf(item, counting, tree) {
  const place = h("div", {}, h("p", {}, h("code", {}, item.slug), ", counted in ", h("bdi", {}, nameOf(counting)), "."), h("p.soft", { role: "status" }, "Adding up today's calls…"));
  fillTopUsers(item, counting, tree).then(
    (content) => place.lastChild.replaceWith(...content),
    (error) => place.lastChild.replaceWith(problemNotice(error)),
  );
  return place;
}

/** What the limit counts, if not the day. */
function itselfCounts({ type, unit }) {
  if (isConcurrent(type)) return "The limit itself counts the calls that are in flight now.";
  return unit !== "DAY" && `The limit itself counts the ${RATE_UNITS.includes(unit) ? "last" : "present"} ${unit.toLowerCase()}.`;
}

async function fillTopUsers(item, counting, tree) {
  const isShared = counting.hierarchy.limit_enforcement === "CASCADING";
  const midnight = new Date().toISOString().slice(0, 10);
  const asked = { start: `${midnight}T00:00:00Z`, group_by: "entity", model_slug: item.slug };
  const path = "/v1/gateway/usage_report";
  const report = isShared ? readAll(path, asked) : read(path, { ...asked, external_entity_id: nameOf(counting) });
  const [{ items, hasMore }, known] = await Promise.all([report, tree]);
  const members = new Map([counting, ...(isShared ? known.descendants(counting.id) : [])].map((one) => [nameOf(one), one]));
  const used = items
    .filter((one) => members.has(one.external_entity_id))
    .map((one) => ({ group: members.get(one.external_entity_id), calls: one.calls, tokens: one.input_tokens + one.output_tokens, amount: amountOf(item.type, one) }));
  const figure = (one) => one.amount;
  used.sort((one, other) => figure(other) - figure(one));
  const all = used.reduce((sum, one) => sum + figure(one), 0);
  const columns = [
    { head: "Group", cell: (one) => groupLink(one.group) },
    { head: "Calls", number: true, cell: (one) => count(one.calls) },
    { head: "Tokens", number: true, cell: (one) => count(one.tokens) },
    { head: `Share of ${TYPES[item.type].parts === null ? "calls" : nounOf(item.type)}`, number: true, cell: (one) => percent(figure(one), all) },
  ];
  return [
    used.length ? table("Today's calls by group", columns, used.slice(0, MOST_USERS)) : nothing("No calls today."),
    used.length > MOST_USERS && h("p", {}, `And ${count(used.length - MOST_USERS)} more groups.`),
    h("p.soft", {}, `Billed calls since midnight UTC, as of ${clockTime(new Date())} less about a minute. `, itselfCounts(item)),
    (hasMore || (isShared && known.hasMore)) && h("p.soft", {}, "The workspace has more groups than were looked through: some may be missing."),
  ].filter(Boolean);
}
