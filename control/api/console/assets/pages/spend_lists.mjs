// Cost by customer, slug and key: the top ten of each, the whole list of one, and either as a file.

import { withQuery } from "../api.mjs";
import { h, redraw } from "../dom.mjs";
import { csvLine, saveFile } from "../files.mjs";
import { actionButton } from "../form.mjs";
import { count } from "../format.mjs";
import { announce, nothing, problemNotice } from "../notice.mjs";
import { pagedList, table } from "../table.mjs";
import { amountText, money } from "./spend_money.mjs";
import { GROUPINGS, addressOf, csvRows, currenciesOf, orderOf, queryOf, readReport, readWhole } from "./spend_reports.mjs";
import { testBadge } from "./test_calls.mjs";

const TOP = 10;
const TITLES = { entity: "By customer", slug: "By slug", key: "By key" };
const ALL = { entity: "All customers", slug: "All slugs", key: "All keys" };
const NONE = "No calls in this time.";

/** The sections of the largest ten of each grouping. `days`: the report of the same time, with its currencies and window. */
export function drawTops(view, days) {
  const tops = GROUPINGS.map((grouping) => new Top(view, grouping, days, () => tops.forEach((one) => one.load())));
  for (const one of tops) one.load();
  return tops.map((one) => one.element);
}

class Top {
  constructor(view, grouping, days, changed) {
    this.list = new SpendList(view, grouping, days, changed);
    this.place = h("div", {}, h("p.soft", { role: "status" }, "Adding up …"));
    this.all = h("a", {}, ALL[grouping]);
    this.element = h("section", {}, head(TITLES[grouping], this.all, this.list), this.place);
  }

  async load() {
    const { view, grouping } = this.list;
    this.all.setAttribute("href", addressOf({ ...view, by: grouping }));
    const query = this.list.query();
    try {
      const { items } = await readReport({ ...query, limit: TOP });
      if (this.list.isOf(query)) redraw(this.place, items.length ? this.list.draw(items) : nothing(NONE));
    } catch (error) {
      if (this.list.isOf(query)) redraw(this.place, problemNotice(error));
    }
  }
}

/** The section of the whole list, a page at a time. */
export function drawList(view, days) {
  const one = new SpendList(view, view.by, days, () => list.reload());
  const list = pagedList("/v1/gateway/usage_report", () => one.query(), (items) => one.draw(items), NONE);
  list.reload();
  return h("section", {}, head(ALL[view.by], null, one), list.element);
}

const head = (title, link, list) => h("div.section-head", {}, h("h2", {}, title), link, downloadButton(list.grouping, () => list.query(), list.window));

/** The table of a grouping, in an order that the user chooses. Lists of a page share the view, and so the order. */
class SpendList {
  constructor(view, grouping, days, changed) {
    Object.assign(this, { view, grouping, changed, window: days.window, currencies: currenciesOf(days.totals) });
    this.hasUnpriced = days.totals.unpriced_calls > 0;
  }

  /** The parameters of the list, in its order. */
  query() {
    return { ...queryOf(this.view, this.grouping), ...orderOf(this.view, this.currencies) };
  }

  /** Whether the list still has the order of this query. */
  isOf(query) {
    return JSON.stringify(query) === JSON.stringify(this.query());
  }

  /** The table, and above it what its sums have in them. */
  draw(items) {
    const { entity } = this.view;
    const hasOwn = items.some(({ own, calls }) => own && own.calls !== calls);
    const columns = this.#columns(hasOwn);
    return [
      hasOwn && h("p.soft", {}, "Each group with all groups below it: a call counts in its group and in each one above, so rows do not add up to the total."),
      this.grouping === "key" && entity && h("p.soft", {}, "Keys of ", h("bdi", {}, entity), " itself, without those of groups below it."),
      table(`Cost ${TITLES[this.grouping].toLowerCase()}`, columns, items, { sort: this.#sort(columns) }),
    ];
  }

  /** The order, as heads of the table show and change it. The address keeps it. */
  #sort(columns) {
    const { order_by, order, currency } = orderOf(this.view, this.currencies);
    const present = columns.find((one) => one.order_by === order_by && (order_by !== "cost" || one.currency === currency));
    const sort = { by: present?.head ?? "", descending: order === "desc", changed: () => change() };
    const change = () => {
      const next = columns.find(({ head: name }) => name === sort.by);
      Object.assign(this.view, { order_by: next.order_by, order: sort.descending ? "desc" : "asc", currency: next.currency ?? null });
      history.replaceState(null, "", addressOf(this.view));
      this.changed();
    };
    return sort;
  }

  #columns(hasOwn) {
    const sum = (name, order_by) => ({ head: name, number: true, canSort: true, order_by, cell: (item) => count(item[order_by]) });
    const costs = this.currencies.flatMap((currency) => [
      { head: `Cost (${currency})`, number: true, canSort: true, order_by: "cost", currency, cell: (item) => moneyCell(item, currency) },
      ...(hasOwn ? [{ head: `Own (${currency})`, number: true, cell: (item) => moneyCell(item.own, currency) }] : []),
    ]);
    return [
      ...this.#names(),
      { head: "See", cell: (item) => this.#links(item) },
      ...costs,
      sum("Calls", "calls"),
      ...(hasOwn ? [{ head: "Own calls", number: true, cell: (item) => count(item.own.calls) }] : []),
      ...(this.hasUnpriced ? [{ ...sum("Without a price", "unpriced_calls"), cell: unpricedCell }] : []),
      sum("Input tokens", "input_tokens"),
      sum("Output tokens", "output_tokens"),
    ];
  }

  #names() {
    const customer = (cell) => ({ head: "Customer", cell });
    if (this.grouping === "slug") return [{ head: "Slug", cell: ({ slug }) => h("code", {}, slug) }];
    if (this.grouping === "key") {
      return [{ head: "Key", cell: (item) => h("code", {}, item.api_key_prefix) }, customer((item) => [h("bdi", {}, item.external_entity_id), testBadge(item.external_entity_id)])];
    }
    return [customer((item) => [h("a", { href: withQuery("/console/groups", { id: item.group_id }), title: "The group" }, h("bdi", {}, item.external_entity_id ?? item.group_id)), testBadge(item.external_entity_id)])];
  }

  #links({ external_entity_id: entity, slug, api_key_prefix: prefix }) {
    const { view, grouping, window } = this;
    if (grouping !== "slug" && !entity) return "–"; // a group that nobody knows any more
    const only = { entity: { entity }, slug: { slug }, key: null }[grouping];
    const calls = { external_entity_id: entity ?? view.entity, slug: slug ?? view.slug, api_key_prefix: prefix };
    const requests = withQuery("/console/requests", { ...calls, start_time: window.start_time, end_time: window.end_time });
    const name = prefix ?? slug ?? entity;
    return h(
      "span.links",
      {},
      only && h("a", { href: addressOf({ ...view, by: null, ...only }), "aria-label": `Spend of ${name}` }, "Spend"),
      h("a", { href: requests, "aria-label": `Requests of ${name}` }, "Requests"),
    );
  }
}

function moneyCell(sums, currency) {
  const amount = amountText(sums, currency);
  return amount === null ? "–" : money(amount);
}

const unpricedCell = ({ unpriced_calls: calls }) => (calls ? h("span.badge.warn", {}, count(calls)) : "0");

/** A button that saves all rows of a report. `query`: its parameters, or a function of them. */
export function downloadButton(grouping, query, { start_time, end_time }) {
  const state = h("span.soft", { role: "status" });
  async function save() {
    const progress = (rows) => (state.textContent = `${count(rows)} rows so far …`);
    const { items } = await readWhole(typeof query === "function" ? query() : query, progress).finally(() => (state.textContent = ""));
    const file = new Blob(csvRows(grouping, items).map(csvLine), { type: "text/csv" });
    saveFile(`spend-by-${grouping}-${start_time.slice(0, 10)}-${end_time.slice(0, 10)}.csv`, file);
    announce(`${count(items.length)} rows are saved`);
  }
  return h("span", {}, actionButton("Download CSV", save, { "aria-label": `Download CSV by ${grouping}` }), state);
}
