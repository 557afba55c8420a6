// One call of the playground: its answer as it arrives, then what it left: limits, and its event.

import { read, route } from "../api.mjs";
import { usageBar } from "../chart.mjs";
import { h, redraw } from "../dom.mjs";
import { bytes, milliseconds } from "../format.mjs";
import { limitBars } from "../limit_bars.mjs";
import { problemNotice, remark } from "../notice.mjs";
import { headerOf, parsed, relay } from "../relay.mjs";
import { billingEvent } from "./playground_event.mjs";

const SHOWN_BYTES = 1_000_000;
const LAST_TYPES = new Set(["message_stop", "response.completed", "response.incomplete", "response.failed"]);

/** Make `call` and draw its answer into `container`, until `signal` stops it. Ends when the answer has. */
export async function answerView(container, session, call, signal) {
  const view = new View(call.dialect);
  const after = h("div");
  container.replaceChildren(view.element, after);
  const began = performance.now();
  const since = () => performance.now() - began;
  try {
    await relay(call, { signal, onHead: (head) => view.head(head, since()), onChunk: (piece) => view.piece(piece, since()) });
    view.end(since(), "");
  } catch (error) {
    if (error.name !== "AbortError" && !view.hasHead) {
      container.replaceChildren(); // the form says why
      throw error;
    }
    view.end(since(), error.name === "AbortError" ? "Stopped by you. The proxy bills what was delivered." : error.message);
  }
  if (!view.hasHead) return;
  after.append(...whatIsLeft(session, call, view));
}

class View {
  hasHead = false;
  headers = [];
  #dialect;
  #decoder = new TextDecoder();
  #isStream = false;
  #pending = ""; // of a stream: the event that is not whole yet
  #whole = ""; // of another answer: what came
  #size = 0;
  #shown = 0;
  #sawLast = false;
  #events = 0;
  #state = h("dd", {}, "waiting");
  #first = h("dd", {}, "–");
  #total = h("dd", {}, "–");
  #size_ = h("dd", {}, "–");
  #text = document.createTextNode("");
  #raw = document.createTextNode("");
  #textBox = h("pre.log", { tabindex: 0, "aria-label": "Text of the answer", hidden: true }, this.#text);
  #rawBox = h("pre.log", { tabindex: 0, "aria-label": "Body as it came" }, this.#raw);
  #rawSummary = h("summary", {}, "Body as it came");
  #told = h("div");
  #headers = h("div");
  element = h(
    "div.card",
    {},
    h("h2", {}, "Answer"),
    h("dl.figures-row", {}, figure("Status", this.#state), figure("First byte", this.#first), figure("Total", this.#total), figure("Body", this.#size_)),
    this.#told,
    this.#textBox,
    h("details", {}, this.#rawSummary, this.#rawBox),
    this.#headers,
  );

  constructor(dialect) {
    this.#dialect = dialect;
  }

  head({ status, headers }, atMs) {
    this.hasHead = true;
    this.status = status;
    this.headers = headers;
    this.#isStream = (headerOf(headers, "content-type") ?? "").startsWith("text/event-stream");
    this.#state.textContent = String(status);
    this.#state.className = status < 400 ? "good-text" : "bad-text";
    this.#first.textContent = milliseconds(atMs);
    this.#headers.append(headerList(headers), limitsLeft(headers));
  }

  piece(piece, atMs) {
    if (this.#size === 0) this.#first.textContent = milliseconds(atMs);
    this.#size += piece.length;
    this.#size_.textContent = bytes(this.#size);
    this.#take(this.#decoder.decode(piece, { stream: true }));
  }

  end(atMs, why) {
    this.#take(this.#decoder.decode());
    this.#total.textContent = milliseconds(atMs);
    if (!this.hasHead) this.#state.textContent = "none";
    if (!this.#isStream) this.#showWhole();
    if (why) redraw(this.#told, remark("warn", why));
    else if (this.#isStream && !this.#sawLast) redraw(this.#told, remark("bad", "The stream ended before its last event: the answer is cut off."));
  }

  #take(text) {
    if (!this.#isStream) {
      this.#whole += text;
      return;
    }
    this.#show(text);
    const blocks = (this.#pending + text).split(/\r?\n\r?\n/);
    this.#pending = blocks.pop();
    for (const block of blocks) this.#event(block);
    this.#rawSummary.textContent = `Events as they came (${this.#events})`;
  }

  #event(block) {
    const data = block.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
    if (!data) return;
    this.#events += 1;
    const event = data === "[DONE]" ? null : parsed(data);
    if (data === "[DONE]" || LAST_TYPES.has(event?.type)) this.#sawLast = true;
    this.#add(event && this.#dialect.deltaOf?.(event));
  }

  #showWhole() {
    const body = parsed(this.#whole);
    this.#show(body === null ? this.#whole : JSON.stringify(body, null, 2));
    if (body === null) return;
    const isFailure = this.status >= 400;
    this.#add(isFailure ? (body.error?.message ?? body.error) : this.#dialect.textOf(body));
    if (this.#textBox.hidden) this.#rawBox.parentElement.open = true;
  }

  #add(text) {
    if (typeof text !== "string" || text === "") return;
    this.#textBox.hidden = false;
    const isAtEnd = this.#textBox.scrollHeight - this.#textBox.scrollTop - this.#textBox.clientHeight < 40;
    this.#text.appendData(text);
    if (isAtEnd) this.#textBox.scrollTop = this.#textBox.scrollHeight;
  }

  #show(text) {
    const room = SHOWN_BYTES - this.#shown;
    if (room <= 0) return;
    this.#raw.appendData(text.length > room ? `${text.slice(0, room)}\n… the rest is not shown` : text);
    this.#shown += text.length;
  }
}

const figure = (name, value) => h("div.figure", {}, h("dt", {}, name), value);

function headerList(headers) {
  return h(
    "details",
    {},
    h("summary", {}, `Headers (${headers.length})`),
    h("dl.facts", {}, headers.map(([name, value]) => [h("dt", {}, h("code", {}, name)), h("dd", {}, h("code", {}, value))])),
  );
}

/** What the answer's own headers say of the tightest limit of each type. */
function limitsLeft(headers) {
  const bars = ["requests", "tokens"].map((type) => {
    const [limit, remaining] = ["limit", "remaining"].map((what) => headerOf(headers, `x-ratelimit-${what}-${type}`));
    if (limit === null || remaining === null) return null;
    const reset = headerOf(headers, `x-ratelimit-reset-${type}`);
    return [h("p", {}, `Tightest limit of ${type}: `, h("strong", {}, `${remaining} of ${limit} left`), reset && `; unused again in ${reset}`), usageBar(`Tightest limit of ${type}`, limit - remaining, Number(limit))];
  });
  return h("div", { "data-key": "limits left" }, bars);
}

function whatIsLeft(session, call, view) {
  const isBilled = !call.dialect.isDirect && session.may_manage && session.onboarded;
  const requestId = headerOf(view.headers, "x-request-id");
  return [isBilled && requestId && billingEvent(requestId, call.prefix), isBilled && call.group && liveLimits(call.group, call.slug)].filter(Boolean);
}

function liveLimits(group, slug) {
  const content = h("div");
  async function load() {
    try {
      const { items } = await read(route`/v1/gateway/groups/${group.id}/limits`, { limit: 1000 });
      const own = items.filter((item) => item.slug === slug);
      redraw(content, own.length ? limitBars("Limits of this call now", own) : h("p.empty", {}, "No limit binds this call."));
    } catch (error) {
      redraw(content, problemNotice(error));
    }
  }
  load();
  return h("section.card", {}, h("h2", {}, "Limits of ", group.metadata.external_entity_id), content, h("p.actions", {}, h("button", { type: "button", onclick: load }, "Refresh")));
}
