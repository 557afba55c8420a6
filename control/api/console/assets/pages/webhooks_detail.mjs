// One webhook: its settings and its deliveries.

import { read, route, send } from "../api.mjs";
import { confirmed, openDialog } from "../dialog.mjs";
import { h, redraw } from "../dom.mjs";
import { ago, count, milliseconds, time } from "../format.mjs";
import { actionButton, copyable, field, form, select } from "../form.mjs";
import { keepFresh } from "../live.mjs";
import { announce, nothing, remark } from "../notice.mjs";
import { table } from "../table.mjs";
import { messages, shownSecret, state, webhookFields } from "./webhooks_forms.mjs";

const EVERY_S = 5;
const PAGE = 50;
const OVERLAPS = [["86400", "for a day"], ["3600", "for an hour"], ["604800", "for a week"], ["0", "no longer: it leaked"]];
const TONES = { PENDING: "warn", DELIVERED: "good", DEAD: "bad" };

/** Draws the webhook of this id into `main`. */
export async function drawWebhook(main, id) {
  const path = route`/v1/gateway/webhooks/${id}`;
  const facts = h("section", { "aria-label": "Webhook" });
  main.append(h("p", {}, h("a", { href: "/console/webhooks" }, "← All webhooks")), facts);
  const show = (webhook) => redraw(facts, settings(path, webhook, show));
  show(await read(path));
  drawDeliveries(main, path);
}

function settings(path, webhook, show) {
  const change = async (body, options) => show(await send("PATCH", path, body, options));
  return [
    h("h2", {}, webhook.url, " ", state(webhook)),
    h(
      "dl.facts",
      {},
      [
        ["Id", copyable(webhook.id, "Webhook id")],
        ["Messages", messages(webhook)],
        ["Group", webhook.group_id && h("a", { href: `/console/groups?id=${encodeURIComponent(webhook.group_id)}` }, webhook.group_id)],
        ["Description", h("bdi", {}, webhook.description ?? "–")],
        ["Details and costs", webhook.include_details ? "in its messages" : "not in its messages"],
        ["Created", time(webhook.created_at)],
        ["Changed", time(webhook.updated_at)],
        ["Old secret signs until", webhook.previous_secret_expires_at && time(webhook.previous_secret_expires_at)],
        ["Managed by", webhook.managed_by && `${webhook.managed_by.name}${webhook.managed_by.drifted ? " (changed since)" : ""}`],
      ].map(([name, value]) => value && [h("dt", {}, name), h("dd", {}, value)]),
    ),
    !webhook.enabled && remark("warn", h("p", {}, "It is off. Events that come in now are not sent to it, then or later.")),
    h(
      "p.toolbar",
      {},
      h("button", { type: "button", needs: "trust", "data-key": "edit", onclick: () => editWebhook(webhook, change) }, "Change"),
      webhook.enabled ? turnOff(change) : actionButton("Turn on", () => change({ enabled: true }), { "data-key": "toggle", needs: "trust" }),
      h("button", { type: "button", needs: "trust", onclick: () => rotateSecret(path, show) }, "Rotate the secret"),
      h("button.danger", { type: "button", needs: "trust", onclick: () => deleteWebhook(path, webhook) }, "Delete"),
    ),
  ];
}

function turnOff(change) {
  const ask = () => confirmed("Turn the webhook off?", h("p", {}, "Events that come in while it is off are not sent to it, then or later. Messages that wait stay."), "Turn off", () => change({ enabled: false }));
  return h("button", { type: "button", needs: "trust", "data-key": "toggle", onclick: ask }, "Turn off");
}

function editWebhook(webhook, change) {
  return openDialog("Change the webhook", (close) => {
    const { fields, body } = webhookFields(webhook);
    const save = async () => {
      await change(body(), { unchanged: webhook });
      close();
    };
    return form("Save", fields, save, { cancel: close });
  });
}

function rotateSecret(path, show) {
  return openDialog("Rotate the secret", (close) => {
    const overlap = select("secret_overlap_seconds", OVERLAPS, "86400");
    const content = h("div");
    const made = form(
      "Rotate",
      field("The present secret signs as well", overlap, "Time to give your receiver the new secret."),
      async () => {
        const webhook = await send("PATCH", path, { rotate_secret: true, secret_overlap_seconds: Number(overlap.value) });
        const { secret } = webhook;
        webhook.secret = null;
        show(webhook);
        content.replaceChildren(shownSecret(secret), h("p.actions", {}, h("button.primary", { type: "button", onclick: () => close() }, "I have stored it")));
      },
      { cancel: close },
    );
    content.append(made);
    return content;
  });
}

async function deleteWebhook(path, webhook) {
  const explanation = h("p", {}, "Messages that wait for ", h("code", {}, webhook.url), " are deleted too.");
  const isDone = await confirmed("Delete the webhook?", explanation, "Delete", () => send("DELETE", path));
  if (isDone) location.assign("/console/webhooks");
}

function drawDeliveries(main, path) {
  const status = select("status", [["", "all"], ["PENDING", "pending"], ["DELIVERED", "delivered"], ["DEAD", "dead"]], "", { onchange: () => again() });
  const more = h("button", { type: "button", hidden: true, onclick: () => longer() }, "Load more");
  const list = h("div");
  main.append(
    h("h2", {}, "Deliveries"),
    h("div.toolbar", {}, field("Status", status), actionButton("Send a test message", test, { needs: "policy" })),
    list,
    more,
  );
  let wanted = PAGE;

  async function load() {
    const page = await read(`${path}/deliveries`, { status: status.value, limit: wanted });
    more.hidden = !page.pagination.has_more || wanted >= 1000;
    return page.items;
  }
  const fresh = keepFresh(list, EVERY_S, load, (items) =>
    items.length ? deliveryTable(items, path, () => fresh.now()) : nothing("No delivery. A message is written when an event comes in, or with a test message."),
  );

  function again() {
    wanted = PAGE;
    return fresh.now();
  }
  function longer() {
    wanted = Math.min(1000, wanted * 2);
    return fresh.now();
  }
  async function test() {
    await send("POST", `${path}/test`);
    announce("A test message is on its way");
    await fresh.now();
  }
}

function deliveryTable(items, path, reload) {
  return table(
    "Deliveries",
    [
      { head: "Message", cell: (one) => h("code.nowrap", {}, one.id) },
      { head: "Type", cell: (one) => one.type },
      { head: "Status", cell: (one) => h(`span.badge.${TONES[one.status]}`, {}, one.status) },
      { head: "Events", number: true, cell: (one) => count(one.event_count) },
      { head: "Created", cell: (one) => ago(one.created_at) },
      { head: "Attempts", cell: attempts },
      { head: "Next attempt or end", cell: whenNext },
      { head: "Actions", cell: (one) => redeliver(one, path, reload) },
    ],
    items,
    { key: "deliveries" },
  );
}

function whenNext({ next_attempt_at, ended_at }) {
  if (!next_attempt_at) return ago(ended_at);
  return Date.parse(next_attempt_at) < Date.now() ? "due now" : ["next ", ago(next_attempt_at)];
}

function redeliver(delivery, path, reload) {
  const act = async () => {
    await send("POST", `${path}${route`/deliveries/${delivery.id}/redeliver`}`);
    announce("The message is sent again");
    await reload();
  };
  return actionButton("Send again", act, { needs: "policy", "data-key": `again ${delivery.id}`, "aria-label": `Send ${delivery.id} again` });
}

function attempts({ id, attempt_count, attempts: latest }) {
  if (attempt_count === 0) return "none yet";
  const last = latest.at(-1);
  const line = ({ at, duration_ms, status_code, error }) => h("li", {}, time(at), `: ${answerOf(status_code, error)}, after ${milliseconds(duration_ms)}`);
  return h(
    "details",
    { "data-key": `attempts ${id}` },
    h("summary", {}, `${attempt_count}: ${last ? answerOf(last.status_code, last.error) : ""}`),
    attempt_count > latest.length && h("p.soft", {}, `The latest ${latest.length}.`),
    h("ol", {}, latest.map(line)),
  );
}

const answerOf = (status, error) => [status, error].filter((one) => one !== null).join(", ") || "no answer";
