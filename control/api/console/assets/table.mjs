// Tables that scroll inside themselves on narrow screens, and lists that load page after page.

import { read } from "./api.mjs";
import { h, redraw } from "./dom.mjs";
import { nothing, problemNotice } from "./notice.mjs";

/**
 * A table. `columns`: `{head, cell(item), number, value(item)}`; cells are elements or text, `number` aligns right. The
 * first column names the row. `caption` says what the table is; it is not drawn, only read aloud. `sort`: sorts by the
 * `value` of one column, and lets the user choose which: `{by, descending, changed()}`, kept by the caller; `by` is a head.
 * A column that `canSort` without a `value` is sorted by the caller, who reads the items in its order.
 */
export function table(caption, columns, items, { key = caption, rowClass = () => "", sort = null } = {}) {
  const head = h("tr", {}, columns.map((column) => headCell(column, sort)));
  const rows = sorted(columns, items, sort).map((item) => h("tr", { class: rowClass(item) || null }, columns.map((column, at) => cell(column, at, item))));
  return h(
    "div.scroll",
    { tabindex: 0, role: "region", "aria-label": caption, "data-key": `table ${key}` },
    h("table", {}, h("caption.hidden", {}, caption), h("thead", {}, head), h("tbody", {}, rows)),
  );
}

function headCell(column, sort) {
  const attributes = { scope: "col", class: column.number && "number" };
  if (!sort || !(column.value || column.canSort)) return h("th", attributes, column.head);
  const isChosen = sort.by === column.head;
  const way = isChosen && (sort.descending ? "descending" : "ascending");
  function choose() {
    sort.descending = isChosen ? !sort.descending : Boolean(column.number);
    sort.by = column.head;
    sort.changed();
  }
  const arrow = h("span", { "aria-hidden": "true" }, !isChosen ? " ↕" : sort.descending ? " ↓" : " ↑");
  return h("th", { ...attributes, "aria-sort": way }, h("button.sort", { type: "button", "data-key": `sort ${column.head}`, onclick: choose }, column.head, arrow));
}

function sorted(columns, items, sort) {
  const value = sort && columns.find((column) => column.head === sort.by)?.value;
  if (!value) return items;
  const order = (one, other) => (value(one) < value(other) ? -1 : value(one) > value(other) ? 1 : 0);
  return items.toSorted((one, other) => (sort.descending ? order(other, one) : order(one, other)));
}

function cell(column, at, item) {
  const content = column.cell(item);
  const attributes = { class: column.number && "number", "data-head": column.head };
  return at === 0 ? h("th", { ...attributes, scope: "row" }, content) : h("td", attributes, content);
}

/**
 * A list of the API, a page at a time, with a button for more. `draw(items)` makes the table of all items so far, `empty`
 * is said when there is none: text, or what makes it of whether more may follow. Answers `{element, reload}`.
 */
export function pagedList(path, query, draw, empty) {
  const list = h("div");
  const more = h("button", { type: "button", hidden: true, onclick: () => load() }, "Load more");
  const element = h("div", {}, list, more);
  let items = [];
  let cursor = null;
  let current = 0; // the load that counts; one that was overtaken adds nothing

  async function load() {
    const mine = (current += 1);
    more.disabled = true;
    try {
      const page = await read(path, cursor ? { cursor } : { limit: 100, ...query() });
      if (mine !== current) return;
      items = items.concat(page.items);
      cursor = page.pagination.cursor;
      redraw(list, items.length ? draw(items) : nothing(typeof empty === "function" ? empty(cursor !== null) : empty));
    } catch (error) {
      if (mine !== current) return;
      list.append(problemNotice(error));
    }
    more.disabled = false;
    more.hidden = cursor === null;
  }

  async function reload() {
    items = [];
    cursor = null;
    await load();
  }

  return { element, reload };
}
