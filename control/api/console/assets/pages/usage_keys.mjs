// The keys of a customer's own group: create, rotate and revoke, where the operator lets customers do it.

import { send } from "../api.mjs";
import { h } from "../dom.mjs";
import { field, form } from "../form.mjs";
import { count } from "../format.mjs";
import { pagedList, table } from "../table.mjs";
import { utc } from "../time_window.mjs";
import { rotate } from "./keys_actions.mjs";
import { NAMES, STATE, TIMES, revoke, revokeButton, showOnce } from "./keys_shared.mjs";

const PATH = "/console/usage/keys";

/** The section. `session`: of the key that is logged in; `callsOf(prefix)`: the calls of a key in 31 days. */
export function managedKeys(session, callsOf) {
  const place = h("div");
  const list = pagedList(PATH, () => ({}), (items) => keyTable(items, { session, callsOf, place, reload: list.reload }), "The group has no keys.");
  list.reload();
  return h(
    "section",
    {},
    h("h2", {}, "Keys"),
    h("p.soft", {}, "A new key may do what the key that you are logged in with may do, and no more: its end, addresses, slugs and limits hold for the new one, too. A key that may do more than yours is changed by whoever holds such a one."),
    createForm(place, list.reload),
    place,
    list.element,
  );
}

function createForm(place, reload) {
  const name = h("input", { name: "name", maxlength: 255, autocomplete: "off" });
  const end = h("input", { type: "datetime-local", step: 1, name: "expires_at" });
  const addresses = h("input", { name: "allowed_ips", spellcheck: "false", autocomplete: "off", placeholder: "203.0.113.0/24, 2001:db8::1" });
  async function submit() {
    const networks = addresses.value.split(/[\s,]+/).filter(Boolean);
    const body = { ...(name.value.trim() && { name: name.value.trim() }), ...(end.value && { expires_at: utc(end.value) }), ...(networks.length && { allowed_ips: networks }) };
    const made = await send("POST", PATH, body);
    for (const control of [name, end, addresses]) control.value = "";
    showOnce(place, made);
    await reload();
  }
  const fields = [
    field("Name (optional)", name),
    field("Expires at (UTC, optional)", end),
    field("Addresses (optional)", addresses, "Addresses or networks that may use the key. Empty: as your key."),
  ];
  return h("div.card", {}, form("Create a key", fields, submit, { primary: true }));
}

function keyTable(items, { session, callsOf, place, reload }) {
  const columns = [
    ...NAMES,
    STATE,
    ...TIMES,
    { head: "Calls in 31 days", number: true, cell: ({ prefix }) => count(callsOf(prefix)) },
    { head: "Actions", cell: (key) => actions(key, { session, place, reload }) },
  ];
  return table("Keys", columns, items, { key: "keys" });
}

function actions(key, { session, place, reload }) {
  if (!key.may_change) return h("span.soft", {}, "may do more than your key");
  const one = `${PATH}/${encodeURIComponent(key.prefix)}`;
  const act = async () => (await rotate(key, one, place)) && reload();
  return [
    key.state === "ACTIVE" && [h("button", { type: "button", "aria-label": `Rotate ${key.prefix}`, onclick: act }, "Rotate"), " "],
    revokeButton(key, async () => (await revoke(PATH, key, session)) && reload()),
  ];
}
