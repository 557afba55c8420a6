// Secrets: upstream credentials by name, when they changed, and which endpoints use them. A value goes in once.

import { Problem, readAll, route, send, withQuery } from "../api.mjs";
import { confirmed, openDialog } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { ago } from "../format.mjs";
import { field, form } from "../form.mjs";
import { announce, nothing, remark } from "../notice.mjs";
import { table } from "../table.mjs";
import { PROVIDERS } from "../tables.mjs";
import { ownerBadge, ownerWarning } from "./groups_data.mjs";

const PATH = "/v1/secrets";
const MOST = 10_000;
const titleOf = ({ provider }) => PROVIDERS.find((one) => one.name === provider)?.title ?? provider;

/** Draws the page. */
export async function draw(main, { query }) {
  const list = h("div");
  const search = h("input", { type: "search", value: query.get("name") ?? "", autocomplete: "off", spellcheck: "false", oninput: () => show() });
  let secrets = [];
  let users = new Map();
  function show() {
    const rows = secrets.filter(({ name }) => name.includes(search.value.trim()));
    list.replaceChildren(rows.length ? secretTable(rows, users, reload) : nothing(secrets.length ? "No secret has this in its name." : "No secret yet. Store the API key of an upstream with the form above, then choose it in an endpoint."));
  }
  async function reload() {
    const [all, endpoints] = await Promise.all([readAll(PATH, {}, MOST), readAll("/v1/gateway/endpoints", {}, MOST)]);
    secrets = all.items;
    users = usersOf(endpoints.items);
    show();
  }
  main.append(
    h("p.soft", {}, "API keys and service accounts of upstreams. Values are sealed and never shown again, to anybody. Training jobs, too, name secrets; those are not in this list."),
    creation(reload),
    h("div.toolbar", {}, field("Find by name", search)),
    list,
  );
  await reload();
}

/** The endpoints and targets that use each secret, by its id. */
function usersOf(endpoints) {
  const uses = endpoints.flatMap((endpoint) => endpoint.targets.filter((target) => target.secret_id).map((target) => ({ endpoint, target })));
  return Map.groupBy(uses, ({ target }) => target.secret_id);
}

function secretTable(secrets, users, reload) {
  const columns = [
    { head: "Name", cell: ({ name }) => h("code", {}, name) },
    { head: "Used by", cell: (secret) => usersList(users.get(secret.id) ?? []) },
    { head: "Created", cell: ({ created_at: at }) => ago(at) },
    { head: "Value changed", cell: (secret) => (secret.updated_at === secret.created_at ? h("span.soft", {}, "never") : ago(secret.updated_at)) },
    { head: "Owner", cell: (secret) => ownerBadge(secret) ?? h("span.soft", {}, "none") },
    {
      head: "Actions",
      cell: (secret) => h(
        "span.nowrap",
        {},
        h("button", { type: "button", needs: "policy", "aria-label": `Replace the value of ${secret.name}`, onclick: () => replaceValue(secret, users.get(secret.id) ?? []).then((isDone) => isDone && reload()) }, "Replace"),
        " ",
        h("button.danger", { type: "button", needs: "policy", "aria-label": `Delete ${secret.name}`, onclick: () => remove(secret, users.get(secret.id) ?? [], reload) }, "Delete"),
      ),
    },
  ];
  return table("Secrets", columns, secrets);
}

function usersList(uses) {
  if (uses.length === 0) return h("span.soft", {}, "no endpoint");
  return h("ul.plain", {}, uses.map(({ endpoint, target }) => h("li", {}, h("a", { href: withQuery("/console/endpoints", { id: endpoint.id }) }, endpoint.slug), `, ${titleOf(target)}`)));
}

/** The controls of a value: typed into a password field, or read from a file, for values of several lines. */
function valueFields() {
  const value = h("input", { name: "value", type: "password", autocomplete: "new-password", spellcheck: "false" });
  const file = h("input", { type: "file" });
  async function typed() {
    return file.files.length ? file.files[0].text() : value.value;
  }
  function clear() {
    value.value = "";
    file.value = "";
  }
  return { typed, clear, fields: [field("Value", value, "It is sealed, and never shown again."), field("Or a file with the value", file, "For several lines, such as a service account.")] };
}

function creation(reload) {
  const name = h("input", { name: "name", maxlength: 255, autocomplete: "off", spellcheck: "false", placeholder: "vendor-key" });
  const { typed, clear, fields } = valueFields();
  async function store() {
    const { items } = await readAll(PATH, {}, MOST);
    if (items.some((one) => one.name === name.value.trim())) {
      const message = "There is a secret of this name. Replace its value in the list below, or choose another name.";
      throw new Problem(409, "CONFLICT", message, [{ field: "name", message }]);
    }
    const stored = await send("POST", PATH, { name: name.value.trim(), value: await typed() });
    name.value = "";
    clear();
    announce(`${stored.name} is stored`);
    await reload();
  }
  return h("div.card", {}, h("h2", {}, "New secret"), form("Store", h("div.limits", {}, field("Name", name), fields), store, { needs: "policy" }));
}

/** Ask for a new value. Answers whether it was stored. */
function replaceValue(secret, uses) {
  return openDialog("Replace the value", (close) => {
    const { typed, clear, fields } = valueFields();
    async function store() {
      await send("POST", PATH, { name: secret.name, value: await typed() });
      clear();
      announce(`${secret.name} has the new value`);
      close(true);
    }
    return h(
      "div",
      {},
      h("div", {}, h("code", {}, secret.name), " is used by: ", usersList(uses)),
      h("p", {}, "Calls have the new value within a second. The value before is gone."),
      ownerWarning(secret),
      form("Replace", fields, store, { cancel: () => close(false) }),
    );
  });
}

async function remove(secret, uses, reload) {
  if (uses.length) {
    return openDialog("This secret is in use", (close) =>
      h(
        "div",
        {},
        remark("warn", h("div", {}, h("code", {}, secret.name), " is used by: ", usersList(uses)), h("p", {}, "Choose another secret in these endpoints, or delete them. Then this one can be deleted.")),
        h("p.actions", {}, h("button", { type: "button", onclick: () => close() }, "Close")),
      ),
    );
  }
  const what = h("div", {}, h("p", {}, "The value of ", h("code", {}, secret.name), " is gone for good. A training job that has not ended and names it keeps it from being deleted."), ownerWarning(secret));
  const isDone = await confirmed("Delete this secret?", what, "Delete", () => send("DELETE", route`/v1/secrets/${secret.name}`));
  if (!isDone) return;
  announce(`Deleted ${secret.name}`);
  await reload();
}
