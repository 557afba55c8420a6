// Health at a glance: what does not work now, how much of it, and the page where it is mended.

import { Problem, read, withQuery } from "../api.mjs";
import { h } from "../dom.mjs";
import { count } from "../format.mjs";
import { PAGES } from "../layout.mjs";
import { keepFresh } from "../live.mjs";
import { BAD_SHARE } from "./error_rate.mjs";

const EVERY_S = 15;
const UNPRICED_EVERY_MS = 300_000; // the report adds up a day
const HOUR_MS = 3_600_000;
const NAMED = 3;
/** `none`: what a part without anything is called; `silent`: that nothing has reported is a fault. */
const PARTS = {
  webhooks: { title: "Webhooks", link: "/console/webhooks", none: "none created" },
  endpoints: { title: "Endpoints", link: "/console/endpoints", none: "none created" },
  launchers: { title: "Launchers of models", link: "/console/models", none: "none in use" },
  proxies: { title: "Proxies", none: "none has reported", silent: true, remedy: "Look at the log of its machine and start it again: its journal may hold events that are not billed yet." },
  trainer: { title: "Trainer", link: "/console/training", none: "none in use" },
  control: { title: "Control" },
};

/** The card, which keeps itself up to date. */
export function healthCard() {
  const content = h("div");
  let unpriced = null;
  let unpricedAt = -Infinity;

  async function load() {
    const isDue = Date.now() - unpricedAt >= UNPRICED_EVERY_MS;
    const [parts, traffic, calls] = await Promise.all([
      readable(read("/v1/gateway/health")),
      readable(read("/v1/gateway/traffic", { period: "hour", series: false })),
      isDue ? readable(readUnpriced()) : unpriced,
    ]);
    if (isDue) {
      unpriced = calls;
      unpricedAt = Date.now();
    }
    return [...Object.keys(PARTS).map((part) => ofPart(part, parts)), ofErrors(traffic), ofPrices(unpriced)];
  }

  keepFresh(content, EVERY_S, load, (checks) => {
    const troubles = checks.filter(({ tone }) => tone === "bad" || tone === "warn");
    const worst = troubles.some(({ tone }) => tone === "bad") ? "bad" : "warn";
    return [
      h("h2", {}, "Health ", troubles.length ? h(`span.badge.${worst}`, {}, `${count(troubles.length)} of ${count(checks.length)} need attention`) : h("span.badge.good", {}, "all well")),
      h("ul", {}, troubles.map(troubleLine), checks.filter((check) => !troubles.includes(check)).map(line)),
    ];
  });
  return h("section.card.health", { "aria-label": "Health" }, content);
}

/** Null instead of an answer that this key may not have. */
function readable(answer) {
  return answer.catch((error) => {
    if (error instanceof Problem && error.status >= 400 && error.status < 500) return null;
    throw error;
  });
}

/** The calls of the last day without a price, with the slugs that have most; null where no price is set at all. */
async function readUnpriced() {
  const start = new Date(Math.floor(Date.now() / HOUR_MS) * HOUR_MS - 24 * HOUR_MS).toISOString();
  const [{ items: prices }, report] = await Promise.all([
    read("/v1/gateway/prices", { limit: 1 }),
    read("/v1/gateway/usage_report", { start, group_by: "slug", order_by: "unpriced_calls", limit: NAMED }),
  ]);
  const names = report.items.filter((item) => item.unpriced_calls > 0).map(({ slug }) => slug);
  return { hasPrices: prices.length > 0, number: report.totals.unpriced_calls, names };
}

function ofPart(part, answer) {
  const { title, link, none, silent, remedy } = PARTS[part];
  const found = answer?.items.find((one) => one.part === part);
  if (!found) return unknown(title);
  const { total, failing, names } = found;
  if (total === 0) return { title, link, tone: silent ? "bad" : "", word: none };
  if (failing === 0) return { title, link, tone: "good", word: total === 1 ? "works" : `all ${count(total)} work` };
  return { title, link, tone: "bad", word: `${count(failing)} of ${count(total)} failing`, names, remedy, more: failing - names.length };
}

function ofErrors(traffic) {
  const title = "Error rates";
  if (!traffic) return unknown(title);
  const high = traffic.items.filter(({ slug, calls, errors }) => slug && calls > 0 && errors / calls >= BAD_SHARE);
  const link = withQuery("/console/requests", { status: "5xx", last: "1h" });
  if (high.length === 0) return { title, tone: "good", word: "below 5 %" };
  return { title, link, tone: "bad", word: `${count(high.length)} above 5 %`, names: high.slice(0, NAMED).map(({ slug }) => slug), more: high.length - NAMED };
}

function ofPrices(unpriced) {
  const title = "Unpriced calls";
  if (!unpriced) return unknown(title);
  const link = PAGES.some(({ name }) => name === "prices") ? "/console/prices" : null;
  const { hasPrices, number, names } = unpriced;
  if (!hasPrices) return { title, link, tone: "", word: "no prices set" };
  if (number === 0) return { title, link, tone: "good", word: "none in 24 h" };
  return { title, link, tone: "bad", word: `${count(number)} in 24 h`, names, more: 0 };
}

const unknown = (title) => ({ title, tone: "warn", word: "not known with this key" });

const linked = ({ title, link }) => (link ? h("a", { href: link, "data-key": `health ${title}` }, title) : title);

const line = (check) => h("li", {}, h("span", {}, linked(check)), h(`span.badge${check.tone && `.${check.tone}`}`, {}, check.word));

function troubleLine(check) {
  const { tone, word, names = [], more = 0, remedy } = check;
  const said = [names.join(", "), more > 0 && names.length > 0 && ` and ${count(more)} more`, remedy && [names.length > 0 && ". ", remedy]];
  return h("li.trouble", {}, h(`span.badge.${tone}`, {}, word), h("span", {}, linked(check), names.length || remedy ? [": ", said] : null));
}
