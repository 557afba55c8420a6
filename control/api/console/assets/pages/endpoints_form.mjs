// The form of a target: the fields that its provider has, a test call, and then saving.

import { readAll, send } from "../api.mjs";
import { openDialog } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { actionButton, field, form, select } from "../form.mjs";
import { milliseconds } from "../format.mjs";
import { announce, remark } from "../notice.mjs";
import { PROVIDERS, REGIONS } from "../tables.mjs";
import { tryTarget } from "./endpoints_trial.mjs";
import { TEST_ENTITY } from "./test_calls.mjs";

/** Fields that are objects, and their members; each member has a control. */
const MEMBERS = { vendor_c_config: ["project_id", "location"], vertex_config: ["project_id", "location"] };
/** Fields that every target may have; empty, they are not sent. */
const OPTIONS = ["upstream_state", "dialects", "price_options"];
const DIALECTS = { CHAT_COMPLETIONS: "Chat Completions", MESSAGES: "Messages", RESPONSES: "Responses" };
const KINDS = [["chat", "a chat completion"], ["embeddings", "an embedding"]];
const SHOWN_LINES = 12;
const SHOWN_CHARACTERS = 2000;

/** The form of a new endpoint; `slug`: what it is filled in with. */
export async function creationForm(session, slug, addressOf) {
  const input = h("input", { name: "slug", autocomplete: "off", spellcheck: "false", value: slug ?? `${session.workspace.prefixes[0] ?? ""}/` });
  const hint = `What callers put in model: prefix/name. Your prefixes: ${session.workspace.prefixes.join(", ")}.`;
  const editor = await targetEditor(session, null, { provider: PROVIDERS[0].name }, "Create the endpoint", async (target) => {
    const made = await send("POST", "/v1/gateway/endpoints", { slug: input.value.trim(), region: region.value, targets: [target] });
    location.assign(addressOf(made));
  });
  const region = select("region", REGIONS.map((one) => [one, one]), REGIONS[0]);
  const choice = REGIONS.length > 1 ? [field("Region", region, "It cannot be changed later.")] : [];
  editor.querySelector("form").prepend(field("Slug", input, hint), ...choice);
  return editor;
}

/** A form with a test call. `slug`: of the endpoint that is re-pointed, or null. `save(target)` stores it. */
export async function targetEditor(session, slug, target, verb, save) {
  const [models, secrets] = await Promise.all([readAll("/v1/models"), readAll("/v1/secrets")]);
  const provider = select("provider", PROVIDERS.map((one) => [one.name, one.title]), target.provider, { onchange: () => show() });
  const controls = controlsOf(target, models.items, secrets.items);
  const fields = h("div");
  const result = h("div", { role: "status" });
  const tested = { text: null };
  const fieldsOf = () => PROVIDERS.find((one) => one.name === provider.value).fields;

  function show() {
    const names = [...fieldsOf().flatMap((name) => MEMBERS[name] ?? [name]), ...OPTIONS];
    for (const name of fieldsOf()) for (const member of MEMBERS[name] ?? []) controls[member].control.name = `targets.0.${name}.${member}`;
    fields.replaceChildren(...Object.keys(controls).filter((name) => names.includes(name)).map((name) => controls[name].field));
    if (names.includes("secret_id")) controls.secret_id.field.after(h("p", {}, newSecret(controls.secret_id.control)));
  }

  function value() {
    const chosen = { provider: provider.value };
    const textOf = (name) => controls[name].control.value.trim();
    for (const name of fieldsOf()) {
      if (MEMBERS[name]) chosen[name] = Object.fromEntries(MEMBERS[name].map((member) => [member, textOf(member)]).filter(([, text]) => text));
      else if (textOf(name)) chosen[name] = textOf(name);
    }
    for (const name of OPTIONS) {
      const { multiple, value: one, selectedOptions } = controls[name].control;
      if (one) chosen[name] = multiple ? [...selectedOptions].map((option) => option.value) : one;
    }
    return chosen;
  }

  async function test() {
    const chosen = value();
    const prefix = slug?.split("/")[0] ?? element.querySelector('[name="slug"]')?.value.split("/")[0];
    const owned = session.workspace.prefixes.includes(prefix) ? prefix : session.workspace.prefixes[0];
    const outcome = await tryTarget(owned, chosen, kind.value, (text) => result.replaceChildren(h("p.soft", {}, text))).catch((error) => {
      result.replaceChildren();
      throw error;
    });
    tested.text = isGood(outcome) ? JSON.stringify(chosen) : null;
    result.replaceChildren(...shown(outcome));
  }

  const kind = select("", KINDS, "chat", { "aria-label": "What the test asks for" });
  const trial = h(
    "section.card",
    { "aria-label": "Test call" },
    h("h3", {}, "Test it first"),
    h("p", {}, "Makes one real call, which the upstream may bill, through a temporary endpoint and key; then deletes them. The call leaves a billing event of ", h("code", {}, TEST_ENTITY), ", the group of test calls, and counts as no customer's."),
    h("div.toolbar", {}, h("span", {}, "Ask for ", kind), actionButton("Test the target", test, { needs: "policy" })),
    result,
  );
  const element = form(verb, [field("Target", provider), fields, trial], async () => {
    const chosen = value();
    if (tested.text !== JSON.stringify(chosen) && !(await isSure())) return;
    await save(chosen);
  }, { needs: "policy" });
  show();
  return h("div.card", {}, element);
}

/** Ask once more before a target is saved that has not answered a test as it is now. */
function isSure() {
  return openDialog("Save without a test?", (close) =>
    h(
      "div",
      {},
      h("p", {}, "The target, as it is now, has not answered a test. Callers use it within a second."),
      h("p.actions", {}, h("button", { type: "button", onclick: () => close(false) }, "Back"), h("button.primary", { type: "button", onclick: () => close(true) }, "Save without a test")),
    ),
  );
}

const isGood = ({ status }) => status >= 200 && status < 300;

function shown(outcome) {
  const { status, ms, text, left } = outcome;
  const lines = text.split("\n").slice(0, SHOWN_LINES).join("\n").slice(0, SHOWN_CHARACTERS);
  return [
    remark(isGood(outcome) ? "good" : "bad", h("p", {}, h("strong", {}, isGood(outcome) ? "The target answers." : "The test call failed."), ` Status ${status}, after ${milliseconds(ms)}.`)),
    h("pre", { tabindex: 0, "aria-label": "First lines of the answer" }, lines || "(an empty answer)"),
    ...left.map((one) => remark("bad", one)),
  ];
}

function controlsOf(target, models, secrets) {
  const text = (name, value, attributes = {}) => h("input", { name: `targets.0.${name}`, value, autocomplete: "off", spellcheck: "false", ...attributes });
  const chosen = (name, items, value) => select(`targets.0.${name}`, [["", "Choose"], ...items.map((one) => [one.id, one.name])], value ?? "");
  const option = (name, standard, other) => select(`targets.0.${name}`, [["", `By default: ${standard[1]}`], standard, other], target[name] ?? "");
  const listed = [...new Set([...(target.dialects ?? []), ...Object.keys(DIALECTS)])];
  const spoken = select("targets.0.dialects", listed.map((one) => [one, DIALECTS[one] ?? one]), null, { multiple: true, size: 3 });
  for (const one of spoken.options) one.selected = target.dialects?.includes(one.value) ?? false;
  const cloud = target.vendor_c_config ?? target.vertex_config;
  const made = {
    model_id: ["Model", chosen("model_id", models, target.model_id), null],
    environment_name: ["Environment (optional)", text("environment_name", target.environment_name), "Empty means production."],
    base_url: ["Base URL", text("base_url", target.base_url, { type: "url", inputmode: "url" }), "Begins with https:// and names no port."],
    secret_id: ["Secret", chosen("secret_id", secrets, target.secret_id), "The upstream's API key, by its name."],
    target_model: ["Model name sent upstream", text("target_model", target.target_model), "For a platform model it may be empty: then the slug is sent."],
    project_id: ["Project", text("project_id", cloud?.project_id), null],
    location: ["Location", text("location", cloud?.location), null],
    upstream_state: ["State stored at the vendor", option("upstream_state", ["REFUSE", "refuse it"], ["PASS", "pass it on"]), "Conversations, files and the like by their ids. All groups share the vendor's account: passed on, each may read what another stored."],
    dialects: ["Dialects (optional)", spoken, "What the server speaks. Nothing chosen: what its provider speaks, or what it answers to."],
    price_options: ["Options with a price of their own", option("price_options", ["PASS", "pass them on"], ["REFUSE", "refuse them"]), "Tools that the vendor runs, service tiers and the like."],
  };
  return Object.fromEntries(Object.entries(made).map(([name, [label, control, hint]]) => [name, { control, field: field(label, control, hint) }]));
}

/** A button that stores a secret, or a new value under a name that exists, and chooses it. */
function newSecret(choice) {
  return actionButton("Store a secret…", () =>
    openDialog("Store a secret", (close) => {
      const name = h("input", { name: "name", maxlength: 255, autocomplete: "off", spellcheck: "false" });
      const value = h("input", { name: "value", type: "password", autocomplete: "new-password", spellcheck: "false" });
      const store = async () => {
        const made = await send("POST", "/v1/secrets", { name: name.value.trim(), value: value.value });
        if (![...choice.options].some((one) => one.value === made.id)) choice.append(h("option", { value: made.id }, made.name));
        choice.value = made.id;
        announce(`${made.name} is stored`);
        close();
      };
      const hint = "A name that exists gets the new value, for every endpoint that uses it.";
      return form("Store", [field("Name of the secret", name, hint), field("Value", value, "It is sealed, and never shown again.")], store, { cancel: () => close() });
    }),
    { needs: "policy" },
  );
}
