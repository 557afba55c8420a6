// Async: the queues of platform models, one asynchronous request, and the secret that signs results.

import { read, readAll, route, send, withQuery } from "../api.mjs";
import { confirmed, openDialog } from "../dialog.mjs";
import { h, redraw } from "../dom.mjs";
import { actionButton, copyable, field } from "../form.mjs";
import { count } from "../format.mjs";
import { LivePart, keepFresh, whenVisible } from "../live.mjs";
import { nothing, remark } from "../notice.mjs";
import { relayJson } from "../relay.mjs";
import { pagedList, table } from "../table.mjs";
import { requestView } from "./async_request.mjs";

const REFRESH_S = 5;
const MODELS_PER_PAGE = 20;
const AT_ONCE = 4; // a session may make eight calls at a time
const SECRET = "/v1/async/webhook_secret";

/** Draws the page. `query`: `id`, a model; `request`, the id of an asynchronous request. */
export async function draw(main, { session, query }) {
  if (session.person) return drawWithoutKey(main);
  const model = query.get("id");
  const request = query.get("request");
  main.append(lookUp(model, request));
  if (request) main.append(requestView(request, model));
  else if (model) await drawModel(main, model);
  else drawModels(main);
  if (!request && !model) main.append(signing());
}

/** Queues are at the proxy, which knows keys alone. */
function drawWithoutKey(main) {
  main.append(
    remark("", "Queues and requests are read with a workspace key, and you logged in without one. To see them, log out and log in with a key that may call models."),
    signing(),
  );
}

/** A plain GET form, so that each look-up has an address. */
function lookUp(model, request) {
  const go = (event) => {
    event.preventDefault();
    location.assign(withQuery("/console/async", { request: id.value.trim(), id: of.value.trim() }));
  };
  const id = h("input", { name: "request", value: request ?? "", required: true, autocomplete: "off", spellcheck: "false" });
  const of = h("input", { name: "id", value: model ?? "", autocomplete: "off", spellcheck: "false" });
  return h(
    "section.card",
    { "aria-label": "Look up a request" },
    h("form.inline", { onsubmit: go }, field("Request", id), field("Model (optional)", of), h("p.actions", {}, h("button", { type: "submit" }, "Look up"))),
  );
}

function drawModels(main) {
  const loaded = new Map(); // model id to its queue's cell
  const list = pagedList("/v1/models", () => ({ limit: MODELS_PER_PAGE }), (models) => {
    const queues = models.map((model) => {
      if (!loaded.has(model.id)) loaded.set(model.id, queueCells(model)); // filled by the next refresh
      return { model, cells: loaded.get(model.id) };
    });
    return table(
      "Queues of the models' production deployments",
      [
        { head: "Model", cell: ({ model }) => h("a", { href: withQuery("/console/async", { id: model.id }) }, model.name) },
        { head: "Queued", number: true, cell: ({ cells }) => cells.queued },
        { head: "Priorities", cell: ({ cells }) => cells.priorities },
        { head: "In progress", number: true, cell: ({ cells }) => cells.running },
        { head: "Deployments", number: true, cell: ({ model }) => count(model.deployments_count) },
        { head: "Playground", cell: ({ model }) => h("a", { href: withQuery("/console/playground", { model: model.id }) }, "Call", h("span.hidden", {}, ` ${model.name}`)) },
      ],
      queues,
    );
  }, "There are no platform models. Register one on the Models page.");
  main.append(h("h2", {}, "Queues in production"), list.element);
  const part = new LivePart(list.element, new Date());
  const refresh = async () => {
    await part.follow(() => refreshAll([...loaded.values()]));
    setTimeout(() => whenVisible(refresh), REFRESH_S * 1000);
  };
  list.reload().then(refresh);
}

/** Read every queue, and fail if one cannot be read: its figures are old. */
async function refreshAll(queues) {
  await atMost(AT_ONCE, queues, (cells) => cells.refresh());
  const { trouble } = queues.find((cells) => cells.trouble) ?? {};
  if (trouble) throw trouble;
}

/** Cells that keep themselves up to date; a model without production has none. */
function queueCells(model) {
  const cells = { queued: h("span", {}, "–"), running: h("span", {}, "–"), priorities: h("span.soft", {}, model.production_deployment_id ? "…" : "no production"), trouble: null, refresh };
  async function refresh() {
    if (!model.production_deployment_id) return;
    try {
      show(cells, await relayJson("GET", queuePath(model.id, "production")));
      cells.trouble = null;
    } catch (error) {
      cells.trouble = error;
      redraw(cells.priorities, error.message);
    }
  }
  return cells;
}

function show(cells, status) {
  redraw(cells.queued, count(status.num_queued_requests));
  redraw(cells.running, count(status.num_in_progress_requests));
  redraw(cells.priorities, prioritiesOf(status));
}


/** "2 of priority 0, 5 of priority 1" */
function prioritiesOf({ priorities }) {
  const waiting = Object.entries(priorities).filter(([, number]) => number > 0);
  return waiting.map(([priority, number]) => `${count(number)} of priority ${priority}`).join(", ") || "–";
}

const queuePath = (modelId, where) => `${route`/models/${modelId}/`}${where}/async_queue_status`;

/** All deployments of one model. */
async function drawModel(main, modelId) {
  const model = await read(route`/v1/models/${modelId}`);
  main.append(
    h("h2", {}, model.name),
    h("p", {}, h("code", {}, model.id), " · ", h("a", { href: withQuery("/console/models", { id: model.id }) }, "Its deployments"), " · ", h("a", { href: "/console/async" }, "All queues")),
  );
  const queues = h("div");
  main.append(queues);
  keepFresh(queues, REFRESH_S, () => loadQueues(modelId), (rows) =>
    rows.length === 0
      ? nothing("The model has no deployments. ", h("a", { href: withQuery("/console/models", { id: modelId }) }, "Create one"), ".")
      : table(
          `Queues of ${model.name}`,
          [
            { head: "Deployment", cell: ({ deployment }) => h("a", { href: withQuery("/console/models", { id: modelId, deployment: deployment.id }) }, deployment.name) },
            { head: "Environment", cell: ({ deployment }) => deployment.environment ?? "–" },
            { head: "Status", cell: ({ deployment }) => h("span.badge", {}, deployment.status) },
            { head: "Queued", number: true, cell: ({ status }) => (status ? count(status.num_queued_requests) : "–") },
            { head: "Priorities", cell: ({ status, problem }) => (status ? prioritiesOf(status) : problem.message) },
            { head: "In progress", number: true, cell: ({ status }) => (status ? count(status.num_in_progress_requests) : "–") },
            { head: "Replicas", number: true, cell: ({ deployment }) => `${deployment.active_replica_count} of ${deployment.replicas.length}` },
          ],
          rows,
        ),
  );
}

async function loadQueues(modelId) {
  const { items } = await readAll(route`/v1/models/${modelId}/deployments`, {}, 50);
  return atMost(AT_ONCE, items, async (deployment) => {
    try {
      return { deployment, status: await relayJson("GET", queuePath(modelId, route`deployment/${deployment.id}`)) };
    } catch (problem) {
      return { deployment, status: null, problem };
    }
  });
}

/** `Promise.all` of `act(item)`, with so many under way at a time. */
async function atMost(number, items, act) {
  const results = [];
  const left = items.entries();
  const work = async () => {
    for (const [at, item] of left) results[at] = await act(item);
  };
  await Promise.all(Array.from({ length: number }, work));
  return results;
}

/** The signing secret is fetched only when it is asked for: reading it makes the first one. */
function signing() {
  const reveal = async () => showSecrets("Signing secret", (await read(SECRET)).secrets);
  const rotate = async () => {
    let made = null;
    const text = h("p", {}, "A new secret signs from now on. For one day the one before signs as well, so receivers can change over; rotate twice if it has leaked.");
    const isDone = await confirmed("Rotate the signing secret", text, "Rotate", async () => (made = await send("POST", SECRET)));
    if (isDone) showSecrets("New signing secret", made.secrets);
  };
  return h(
    "section.card",
    {},
    h("h2", {}, "Signing secret"),
    h("p", {}, "It signs the results that are posted to the webhooks of asynchronous requests. Until it is shown for the first time, there is none, and results are not signed."),
    h("div.toolbar", {}, actionButton("Show", reveal, { needs: "trust" }), actionButton("Rotate", rotate, { class: "danger", needs: "trust" })),
  );
}

function showSecrets(title, secrets) {
  openDialog(title, (close) => [
    remark("warn", "Copy it now and keep it where receivers read it. It goes when this dialog closes."),
    secrets.map((secret, at) => [h("h3", {}, at === 0 ? "Signs now" : "Signs as well, for a day after the rotation"), copyable(secret, at === 0 ? "The secret" : "The secret before")]),
    h("p.actions", {}, h("button.primary", { type: "button", onclick: () => close() }, "Done")),
  ]);
}
