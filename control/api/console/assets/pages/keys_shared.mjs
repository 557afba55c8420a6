// What lists of keys share: columns, the form that makes a key, the question before one is revoked.

import { send, withQuery } from "../api.mjs";
import { confirmed } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { copyable, field, form, select } from "../form.mjs";
import { ago } from "../format.mjs";
import { announce, remark } from "../notice.mjs";
import { restrictions, settingsFields, stateBadge } from "./keys_settings.mjs";

/** Ask, and revoke a key; `path`: of its owner's keys. Answers whether it was done. */
export async function revoke(path, key, session) {
  const isOwn = key.prefix === session.prefix;
  const what = h(
    "div",
    {},
    h("p", {}, "Calls with ", h("code", {}, key.prefix), key.name && [" (", h("bdi", {}, key.name), ")"], " are refused within a second. This cannot be undone."),
    h("p", {}, "Last used: ", ago(key.last_used_at), "."),
    isOwn && remark("warn", "You are logged in with this key. Revoking it logs you out."),
  );
  const isDone = await confirmed("Revoke this key?", what, "Revoke", () => send("DELETE", `${path}/${encodeURIComponent(key.prefix)}`));
  if (isDone && isOwn) location.reload();
  else if (isDone) announce(`Revoked ${key.prefix}`);
  return isDone;
}

/**
 * The form that makes a key; `types`: what a key may do (`type` or `type/role`), of which one is chosen, or null for a group's key, on which more can
 * be set. A new key appears in `place`.
 */
export function mintForm(path, types, place, reload) {
  const name = h("input", { name: "name", maxlength: 255, autocomplete: "off" });
  const type = types && select("type", types, "WORKSPACE_INVOKE");
  const more = types ? null : h("div");
  const said = h("div");
  let settings = null;
  async function submit() {
    const value = settings?.value();
    said.replaceChildren();
    if (value === null) return said.replaceChildren(remark("bad", "A limit is a whole number, a spend limit an amount and a currency, such as 100.00 EUR."));
    const chosen = Object.fromEntries(Object.entries(value ?? {}).filter(([, one]) => one !== null && one.length !== 0));
    const [kind, role] = type ? type.value.split("/") : [];
    const made = await send("POST", path, { type: kind, role, ...(name.value.trim() && { name: name.value.trim() }), ...chosen });
    name.value = "";
    clear();
    showOnce(place, made);
    await reload();
  }
  function clear() {
    settings = more && settingsFields();
    more?.replaceChildren(...settings.elements);
    if (details) details.open = false;
  }
  const details = more && h("details", {}, h("summary", {}, "Expiry, addresses, slugs and limits"), more);
  clear();
  return h("div.card", {}, form("Create a key", [field("Name (optional)", name), type && field("Permission", type), details, said], submit, { inline: types !== null, primary: true, needs: "keys" }));
}

/** Show a new key until its owner says that it is stored; it is nowhere else. `more`: what else there is to say of it. */
export function showOnce(place, made, more = []) {
  const warn = (event) => event.preventDefault(); // the browser asks before the page is left
  addEventListener("beforeunload", warn);
  const stored = h("button.primary", { type: "button", onclick: finish }, "I have stored it");
  const notice = h(
    "section.notice.warn",
    { tabindex: -1, "aria-label": "The new key" },
    h("p", {}, h("strong", {}, "Store this key now."), " Tollgate keeps no copy and cannot show it again."),
    more.length > 0 && h("p", {}, more),
    copyable(made.api_key, "The new key"),
    h("p", {}, stored),
  );
  function finish() {
    removeEventListener("beforeunload", warn);
    notice.remove();
    announce(`${made.prefix} is ready`);
  }
  place.prepend(notice);
  notice.focus();
}

/** Columns that lists of keys share. */
export const NAMES = [
  { head: "Prefix", cell: (key) => h("code", {}, key.prefix) },
  { head: "Name", cell: (key) => (key.name === null ? h("span.soft", {}, "none") : h("bdi", {}, key.name)) },
];
export const STATE = { head: "State", cell: stateBadge };
export const RESTRICTIONS = { head: "Restricted to", cell: restricted };
export const TIMES = [
  { head: "Last used", cell: (key) => (key.last_used_at ? ago(key.last_used_at) : h("span.soft", {}, "never")) },
  { head: "Created", cell: (key) => ago(key.created_at) },
];

function restricted(key) {
  const texts = restrictions(key);
  return texts.length ? texts.map((text) => h("div", {}, text)) : h("span.soft", {}, "nothing");
}

export const eventsLink = (key) => h("a", { href: withQuery("/console/events", { api_key_prefix: key.prefix }), "aria-label": `Events of ${key.prefix}` }, "Events");
export const revokeButton = (key, act) => h("button.danger", { type: "button", needs: "keys", "aria-label": `Revoke ${key.prefix}`, onclick: act }, "Revoke");
