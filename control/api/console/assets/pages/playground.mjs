// Playground: call a slug or a platform model as its callers do, and see all that comes back, the bill included.

import { readAll } from "../api.mjs";
import { h, redraw } from "../dom.mjs";
import { copyable, field, form, select } from "../form.mjs";
import { parsed } from "../relay.mjs";
import { answerView } from "./playground_answer.mjs";
import { snippets } from "./playground_code.mjs";
import { DIALECTS } from "./playground_dialects.mjs";
import { keyChoice } from "./playground_key.mjs";

const MODES = [["prompt", "Prompt"], ["json", "JSON body"]];
const PLACEHOLDER_URL = "https://gateway.example";

/** Draws the page. `query`: `slug`, or `model` for a direct call. */
export async function draw(main, { session, query }) {
  const request = requestFields(session, query);
  const key = keyChoice(session, request.slug);
  const answer = h("section", { "aria-label": "The answer" });
  const code = h("div");
  const stop = h("button", { type: "button", hidden: true }, "Stop");

  async function submit() {
    const asked = request.call();
    const call = { ...asked, ...(await key.chosen(asked.slug)) };
    const ended = new AbortController();
    stop.onclick = () => ended.abort();
    stop.hidden = false;
    try {
      await answerView(answer, session, call, ended.signal);
    } finally {
      stop.hidden = true;
    }
  }

  function changed() {
    key.forDialect(request.dialect());
    redraw(code, codeOf({ ...request.call(), baseUrl: session.inference_url ?? PLACEHOLDER_URL }));
  }

  const card = h("section.card", { "aria-label": "The call" }, form("Call", [request.element, key.element, h("p.actions", {}, stop)], submit));
  card.addEventListener("input", changed);
  main.append(
    h("p.soft", {}, "A real call through the proxy: it counts against the limits of its key's group and is billed like any other."),
    h("div.halves", {}, card, answer),
    h("section", { "aria-label": "The same call as code" }, h("h2", {}, "The same call as code"), code),
  );
  request.onMode(changed);
  changed();
  if (session.may_manage) await request.suggest();
}

function requestFields(session, query) {
  const start = query.get("model") ? "predict" : "chat";
  const api = select("api", DIALECTS.map(({ name, title }) => [name, title]), start);
  const slug = h("input", { name: "slug", value: query.get("slug") ?? "", list: "slugs", autocomplete: "off", spellcheck: "false", required: true, placeholder: `${session.workspace.prefixes[0] ?? "acme"}/…` });
  const slugs = h("datalist", { id: "slugs" });
  const model = h("input", { name: "model", value: query.get("model") ?? "", list: "models", autocomplete: "off", spellcheck: "false" });
  const models = h("datalist", { id: "models" });
  const where = h("input", { name: "where", value: query.get("where") ?? "production", autocomplete: "off", spellcheck: "false" });
  const prompt = h("textarea", { name: "prompt", rows: 4 }, "Say hello.");
  const json = h("textarea", { name: "json", rows: 10, spellcheck: "false" });
  const streams = h("input", { type: "checkbox", name: "stream", checked: true });
  const mode = { name: "prompt", listener: () => {} };

  const slugField = field("Slug", slug, session.may_manage ? "Type, or choose one of your endpoints." : null);
  const direct = h("div", {}, field("Model", model, "The id of a platform model."), field("Where", where, "production, development, environments/{name} or deployment/{id}"));
  const promptField = field("Prompt", prompt);
  const jsonField = field("JSON body", json, "Sent as it is written.");
  const streamField = h("p.field", {}, h("label", {}, streams, " Stream the answer"));
  const modes = h("p.choices", { role: "group", "aria-label": "Body" }, MODES.map(([name, text]) => h("button", { type: "button", "data-mode": name, onclick: () => show(name) }, text)));

  const dialect = () => DIALECTS.find(({ name }) => name === api.value);
  const made = () => JSON.stringify(dialect().body(slug.value.trim(), prompt.value, Boolean(dialect().streams) && streams.checked), null, 2);

  function show(name) {
    if (name === "json" && mode.name !== "json") json.value = made();
    mode.name = name;
    arrange();
    mode.listener();
  }

  function arrange() {
    for (const button of modes.children) button.setAttribute("aria-pressed", String(button.dataset.mode === mode.name));
    const isDirect = Boolean(dialect().isDirect);
    slugField.hidden = isDirect;
    slug.required = !isDirect;
    direct.hidden = !isDirect;
    promptField.hidden = mode.name !== "prompt";
    jsonField.hidden = mode.name !== "json";
    streamField.hidden = !dialect().streams || mode.name !== "prompt";
  }

  async function suggest() {
    const [known, registered] = await Promise.all([session.onboarded ? readAll("/v1/gateway/endpoints", {}, 1000) : { items: [] }, readAll("/v1/models", {}, 1000)]);
    slugs.replaceChildren(...known.items.map((one) => h("option", { value: one.slug })));
    models.replaceChildren(...registered.items.map((one) => h("option", { value: one.id }, one.name)));
  }

  function call() {
    const used = dialect();
    const bodyText = mode.name === "json" ? json.value : made();
    const path = used.isDirect ? used.pathOf({ model: model.value.trim(), where: where.value.trim() }) : used.path;
    return { dialect: used, slug: slugOf(used, slug, bodyText), method: "POST", path, headers: used.headers ?? [], bodyText };
  }

  api.addEventListener("input", arrange);
  arrange();
  return {
    element: h("div", {}, field("API", api), slugField, slugs, direct, models, modes, promptField, jsonField, streamField),
    slug,
    dialect,
    call,
    suggest,
    onMode: (listener) => (mode.listener = listener),
  };
}

// The body decides, as it does at the proxy.
function slugOf(dialect, slug, bodyText) {
  return dialect.isDirect ? null : (parsed(bodyText)?.model ?? slug.value.trim());
}

function codeOf(call) {
  if (parsed(call.bodyText) === null) return h("p.empty", {}, "The body is not JSON yet.");
  const remark = call.baseUrl === PLACEHOLDER_URL && h("p.soft", {}, `Put your gateway's address in place of ${PLACEHOLDER_URL}.`);
  const shown = snippets(call).map(({ title, text }) =>
    h("details.card", { "data-key": title }, h("summary", {}, title), copyable(text, `The call as ${title}`)),
  );
  return [h("p.soft", {}, "The key is read from the environment: ", h("code", {}, "TOLLGATE_API_KEY"), "."), remark, shown];
}
