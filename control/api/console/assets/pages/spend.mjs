// Spend: what calls cost in a time, by day, customer, slug and key, and this month beside the last one.

import { withQuery } from "../api.mjs";
import { h } from "../dom.mjs";
import { field, form } from "../form.mjs";
import { brief, count } from "../format.mjs";
import { nothing, problemNotice, remark } from "../notice.mjs";
import { drawDays } from "./spend_days.mjs";
import { drawList, drawTops } from "./spend_lists.mjs";
import { costFigures, figure } from "./spend_money.mjs";
import { drawMonths } from "./spend_months.mjs";
import { RANGES, utcText, windowText } from "./spend_period.mjs";
import { addressOf, queryOf, readReport, readWhole, viewOf } from "./spend_reports.mjs";

const UNPRICED_SLUGS = 5;

/** Draws the page. */
export async function draw(main, { query }) {
  const view = viewOf(query);
  const months = h("section", { hidden: Boolean(view.by) });
  const place = h("div", {}, h("p.soft", { role: "status" }, "Adding up …"));
  main.append(introduction(), filterText(view) ?? "", months, toolbar(view), place);
  if (!view.by) drawMonths(months, view);
  const days = await readWhole(queryOf(view, "day")).catch((error) => {
    place.replaceChildren(problemNotice(error));
    return null;
  });
  if (days === null) return;
  place.replaceChildren(h("h2", {}, windowText(days.window.start_time, days.window.end_time)));
  if (days.totals.calls === 0) return place.append(noCalls(days.window));
  place.append(finality(days.window), totals(days), unpriced(view, days.totals));
  if (view.by) return place.append(drawList(view, days));
  place.append(drawDays(view, days), ...drawTops(view, days));
}

function introduction() {
  return h("p.soft", {}, "What calls cost, exactly, at your ", h("a", { href: "/console/prices" }, "prices"), ". Days and months are those of UTC. Currencies are never added together.");
}

function toolbar(view) {
  const { period, entity, slug } = view;
  const presets = Object.entries(RANGES).map(([range, { title }]) =>
    h("a.button", { href: addressOf({ ...view, period: { range } }), "aria-current": range === period.range && "page" }, title),
  );
  const [from, to] = ["from", "to"].map((name) => h("input", { type: "date", name, value: period[name], required: true }));
  const customer = h("input", { name: "external_entity_id", value: entity, maxlength: 255, spellcheck: "false", placeholder: "all" });
  const model = h("input", { name: "model_slug", value: slug, maxlength: 257, spellcheck: "false", placeholder: "all" });
  const show = () => {
    const isPreset = period.range && from.value === period.from && to.value === period.to;
    const chosen = isPreset ? period : { range: "", from: from.value, to: to.value };
    location.assign(addressOf({ ...view, period: chosen, entity: customer.value.trim(), slug: model.value.trim() }));
  };
  const fields = [field("From (UTC)", from), field("To, inclusive", to), field("Customer (external id)", customer), field("Slug", model)];
  return h(
    "div",
    {},
    h("div.toolbar", {}, h("div.choices", { role: "group", "aria-label": "Time" }, presets)),
    h("div.toolbar", {}, form("Show", fields, show, { inline: true })),
  );
}

/** Which calls are shown, if not all, and the way to all; or null. */
function filterText(view) {
  const { entity, slug, by } = view;
  if (!entity && !slug && !by) return null;
  return h(
    "p.toolbar",
    {},
    by && h("a", { href: addressOf({ ...view, by: null }) }, "← Back to the overview of this time"),
    entity && h("span", {}, "Only ", h("strong", {}, h("bdi", {}, entity)), " with all groups below it. ", h("a", { href: addressOf({ ...view, entity: null }) }, "Show all customers")),
    slug && h("span", {}, "Only ", h("code", {}, slug), ". ", h("a", { href: addressOf({ ...view, slug: null }) }, "Show all slugs")),
  );
}

const finality = ({ end_time: end }) => h("p.soft", {}, `Figures are final until ${utcText(end)}. A call is added once it is final: by default a minute after its end.`);

function noCalls({ end_time: end }) {
  return nothing(`No calls in this time until ${utcText(end)}. A call appears here once it is final: by default a minute after its end. Choose another time, or fewer filters.`);
}

function totals({ totals: sums }) {
  const counted = (name, value, note = null) => figure(name, brief(value), { title: count(value), note });
  return h(
    "dl.figures-row",
    {},
    costFigures("Cost", sums),
    figure("Calls", count(sums.calls)),
    counted("Input tokens", sums.input_tokens, `${brief(sums.cached_input_tokens)} of them cached`),
    counted("Output tokens", sums.output_tokens),
  );
}

/** The calls that are in no amount, their slugs, and the way to prices; nothing if there are none. */
function unpriced(view, { unpriced_calls: calls, cost }) {
  if (calls === 0) return "";
  const slugs = h("ul", {}, h("li", {}, "…"));
  readReport({ ...queryOf(view, "slug"), order_by: "unpriced_calls", limit: UNPRICED_SLUGS }).then(
    ({ items }) => {
      const some = items.filter((item) => item.unpriced_calls > 0);
      slugs.replaceChildren(...some.map((item) => h("li", {}, priceLink(item.slug, view.period.from), `: ${count(item.unpriced_calls)}`)));
    },
    (error) => slugs.replaceWith(problemNotice(error)),
  );
  return remark(
    "warn",
    h("p", {}, h("strong", {}, `${count(calls)} ${calls === 1 ? "call has" : "calls have"} no price`), `, so ${cost ? "the amounts are too low" : "nothing has a cost"}. By slug, most first:`),
    slugs,
    h("p", {}, h("a", { href: "/console/prices" }, "Set prices"), ": a price with an earlier date prices these calls, too."),
  );
}

/** The form of a price from then on. Models that are called directly have no `/`, and no price. */
function priceLink(slug, valid_from) {
  const name = h("code", {}, slug);
  if (!slug.includes("/")) return name;
  return h("a", { href: withQuery("/console/prices", { new: 1, slug, valid_from }), title: "Set a price" }, name);
}
