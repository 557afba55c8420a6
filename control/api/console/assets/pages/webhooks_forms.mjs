// What the list of webhooks and the page of one show in the same way: state, messages, controls, a new secret.

import { h } from "../dom.mjs";
import { copyable, field, select } from "../form.mjs";
import { remark } from "../notice.mjs";

/** Whether it is on, as a badge. */
export const state = ({ enabled }) => (enabled ? h("span.badge.good", {}, "on") : h("span.badge.warn", {}, "off"));

const MESSAGES = [
  ["API_BILLING_USAGE", "billing events"],
  ["LIMIT_ALERT", "alerts on limits"],
  ["API_BILLING_USAGE,LIMIT_ALERT", "both"],
];

/** The messages that it is sent, in words. */
export const messages = ({ event_types: types }) => MESSAGES.find(([value]) => value === types.join())?.[1] ?? types.join(", ");

/** The controls of a webhook, with what they hold now. */
export function webhookFields(webhook = { url: "", description: "", include_details: false, event_types: ["API_BILLING_USAGE"] }) {
  const url = h("input", { type: "url", name: "url", value: webhook.url, required: true, spellcheck: "false", placeholder: "https://example.com/billing" });
  const description = h("input", { name: "description", value: webhook.description ?? "", maxlength: 255 });
  const types = select("event_types", MESSAGES, webhook.event_types.join());
  const details = h("input", { type: "checkbox", name: "include_details", checked: webhook.include_details });
  return {
    body: () => ({ url: url.value.trim(), description: description.value.trim() || null, event_types: types.value.split(","), include_details: details.checked }),
    fields: [
      field("URL", url, "A public https address. It answers 2xx to each message."),
      field("Description", description, "For people. May be empty."),
      field("Messages", types),
      field("Details and costs", details, "Whether the events of messages have them."),
    ],
  };
}

/** A secret that was just made; it is never shown again. */
export const shownSecret = (secret) =>
  h(
    "div",
    {},
    remark("warn", h("p", {}, "This is the signing secret. It is shown once: store it where your receiver verifies signatures.")),
    copyable(secret, "Signing secret"),
  );
