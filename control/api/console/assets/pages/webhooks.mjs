// Webhooks: who is told of billing events and alerts, and what was delivered to them.

import { send, withQuery } from "../api.mjs";
import { openDialog } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { ago } from "../format.mjs";
import { field, form } from "../form.mjs";
import { pagedList, table } from "../table.mjs";
import { drawWebhook } from "./webhooks_detail.mjs";
import { messages, shownSecret, state, webhookFields } from "./webhooks_forms.mjs";

/** Draws the page. */
export async function draw(main, { query }) {
  const id = query.get("id");
  if (id) return drawWebhook(main, id);
  const list = pagedList("/v1/gateway/webhooks", () => ({}), webhookTable, "No webhook yet. Create one to be told of billing events.");
  const create = h("button.primary", { type: "button", needs: "trust", onclick: () => createWebhook().then(list.reload) }, "Create a webhook");
  main.append(
    h("p.soft", {}, "Each webhook is sent every billing event of the workspace or of one group, and alerts on limits, as it asks: in signed messages, until it answers 2xx or three days have passed."),
    h("p.toolbar", {}, create),
    list.element,
  );
  await list.reload();
}

function webhookTable(webhooks) {
  return table(
    "Webhooks",
    [
      { head: "URL", cell: (one) => h("a", { href: withQuery("/console/webhooks", { id: one.id }) }, one.url) },
      { head: "State", cell: state },
      { head: "Messages", cell: messages },
      { head: "Description", cell: (one) => h("bdi", {}, one.description ?? "–") },
      { head: "Created", cell: (one) => ago(one.created_at) },
    ],
    webhooks,
  );
}

function createWebhook() {
  return openDialog("Create a webhook", (close) => {
    const { fields, body } = webhookFields();
    const group = h("input", { name: "group_id", autocomplete: "off", spellcheck: "false", placeholder: "grp_…" });
    const content = h("div");
    const made = form(
      "Create",
      [...fields, field("Id of a group (optional)", group, "It is told of that group and those below it alone. This cannot be changed.")],
      async () => {
        const webhook = await send("POST", "/v1/gateway/webhooks", { ...body(), group_id: group.value.trim() || null });
        content.replaceChildren(
          shownSecret(webhook.secret),
          h("p.actions", {}, h("a.button", { href: withQuery("/console/webhooks", { id: webhook.id }) }, "Open the webhook"), h("button.primary", { type: "button", onclick: () => close() }, "I have stored it")),
        );
      },
      { cancel: close },
    );
    content.append(made);
    return content;
  });
}
