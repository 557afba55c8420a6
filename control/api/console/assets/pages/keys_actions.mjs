// What can be done with a key of a group: edit, rotate, disable, enable, revoke.

import { send } from "../api.mjs";
import { confirmed, openDialog } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { actionButton, field, form, select } from "../form.mjs";
import { time } from "../format.mjs";
import { announce, remark } from "../notice.mjs";
import { revoke, revokeButton, showOnce } from "./keys_shared.mjs";
import { differences, settingsFields } from "./keys_settings.mjs";

const OVERLAPS = [
  [900, "15 minutes"],
  [3600, "1 hour"],
  [86_400, "1 day"],
  [604_800, "7 days"],
  [0, "None: the old key ends at once"],
].map(([seconds, text]) => [String(seconds), text]);

/** The buttons of a key. `path`: of its group's keys; `place`: where a new key is shown; `reload()`: the list. */
export function keyActions(key, { path, session, place, reload }) {
  const one = `${path}/${encodeURIComponent(key.prefix)}`;
  const named = (verb) => ({ needs: "keys", "aria-label": `${verb} ${key.prefix}`, "data-key": `${verb} ${key.prefix}` });
  const button = (verb, act) => h("button", { type: "button", ...named(verb), onclick: async () => (await act()) && reload() }, verb);
  const enable = async () => (await send("PATCH", one, { disabled: false }), announce(`Enabled ${key.prefix}`), await reload());
  return [
    button("Edit", () => edit(key, one)),
    " ",
    key.state === "ACTIVE" && [button("Rotate", () => rotate(key, one, place)), " "],
    key.disabled ? actionButton("Enable", enable, named("Enable")) : button("Disable", () => disable(key, one)),
    " ",
    revokeButton(key, async () => (await revoke(path, key, session)) && reload()),
  ];
}

const nameOf = (key) => [h("code", {}, key.prefix), key.name && [" (", h("bdi", {}, key.name), ")"]];

/** Each of these answers whether something was changed. */
function edit(key, one) {
  return openDialog(`Edit ${key.prefix}`, (close) => {
    const name = h("input", { name: "name", maxlength: 255, autocomplete: "off", value: key.name });
    const settings = settingsFields(key);
    const said = h("div");
    async function submit() {
      const value = settings.value();
      said.replaceChildren();
      if (!value) return said.replaceChildren(remark("bad", "A limit is a whole number, a spend limit an amount and a currency, such as 100.00 EUR."));
      const body = differences(key, { name: name.value.trim() || null, ...value });
      if (Object.keys(body).length > 0) await send("PATCH", one, body);
      close(true);
      announce(`Saved ${key.prefix}`);
    }
    return form("Save", [field("Name (optional)", name), settings.elements, said], submit, { cancel: () => close(false) });
  });
}

/** Ask, and rotate a key; `one`: its path. Answers whether it was done; the new key is in `place`. */
export async function rotate(key, one, place) {
  const made = await openDialog("Rotate this key", (close) => {
    const overlap = select("overlap_seconds", OVERLAPS, "3600");
    const submit = async () => close(await send("POST", `${one}/rotate`, { overlap_seconds: Number(overlap.value) }));
    const fields = [
      h("p", {}, "A new key takes the place of ", nameOf(key), ". It has the same settings and shares limits and spend with it."),
      field("Both keys work for", overlap, "Give the new key to its callers in this time. Then the old one is refused."),
    ];
    return form("Rotate", fields, submit, { cancel: () => close(undefined) });
  });
  if (!made) return false;
  showOnce(place, made, ["It takes the place of ", h("code", {}, key.prefix), ", which ends at ", time(made.replaces.expires_at), "."]);
  return true;
}

async function disable(key, one) {
  const what = h("p", {}, "Calls with ", nameOf(key), " are refused within a second, until it is enabled again.");
  const isDone = await confirmed("Disable this key?", what, "Disable", () => send("PATCH", one, { disabled: true }));
  if (isDone) announce(`Disabled ${key.prefix}`);
  return isDone;
}
