// Models: platform models, their deployments and environments.

import { read, readAll, route, send } from "../api.mjs";
import { confirmed, openDialog } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { ago, count, time } from "../format.mjs";
import { copyable, field, form, select } from "../form.mjs";
import { keepFresh } from "../live.mjs";
import { nothing } from "../notice.mjs";
import { pagedList, table } from "../table.mjs";
import { drawDeployment, verbs } from "./models_deployment.mjs";
import { addressOf, askDeployment, askName, healthyOf, statusBadge } from "./models_forms.mjs";

const EVERY_S = 3;
const MOST = 200; // deployments and environments that the page shows

/** Draws the page. */
export async function draw(main, { query }) {
  const [id, deployment] = [query.get("id"), query.get("deployment")];
  if (id && deployment) return drawDeployment(main, id, deployment);
  if (id) return drawModel(main, id);
  const list = pagedList("/v1/models", () => ({}), modelTable, "No model yet. Create one, give it a deployment with replicas, and point a slug at it.");
  const create = async (name) => location.assign(addressOf((await send("POST", "/v1/models", { name })).id));
  main.append(
    h("p.soft", {}, "A model of your own servers. A slug leads to one of its environments, and that to a deployment."),
    h("p.toolbar", {}, h("button.primary", { type: "button", needs: "workloads", onclick: () => askName("Create a model", "Create", "", create) }, "Create a model")),
    list.element,
  );
  await list.reload();
}

function modelTable(models) {
  const environment = (model, name) => (model[`${name}_deployment_id`] ? h("a", { href: addressOf(model.id, model[`${name}_deployment_id`]) }, name) : null);
  return table(
    "Models",
    [
      { head: "Name", cell: (one) => h("a", { href: addressOf(one.id) }, h("bdi", {}, one.name)) },
      { head: "Deployments", number: true, cell: (one) => count(one.deployments_count) },
      { head: "Environments", cell: (one) => [environment(one, "production") ?? "no production", " ", environment(one, "development")] },
      { head: "Id", cell: (one) => h("code.nowrap", {}, one.id) },
      { head: "Created", cell: (one) => ago(one.created_at) },
    ],
    models,
  );
}

async function drawModel(main, id) {
  const path = route`/v1/models/${id}`;
  const content = h("div");
  main.append(h("p", {}, h("a", { href: "/console/models" }, "← All models")), content);
  const load = async () => {
    const [model, deployments, environments] = await Promise.all([
      read(path),
      readAll(`${path}/deployments`, {}, MOST),
      readAll(`${path}/environments`, {}, MOST),
    ]);
    return { model, deployments, environments };
  };
  const fresh = keepFresh(content, EVERY_S, load, (loaded) => [head(path, loaded.model, reload), deploymentList(path, loaded, reload), environmentList(path, loaded, reload)]);
  function reload() {
    return fresh.now();
  }
}

function head(path, model, reload) {
  const rename = () => askName("Rename the model", "Rename", model.name, (name) => send("PATCH", path, { name })).then(reload);
  const remove = async () => {
    const explanation = h("p", {}, "Its deployments, environments and logs go with it. It is refused while an endpoint names the model.");
    if (await confirmed("Delete the model?", explanation, "Delete", () => send("DELETE", path), model.name)) location.assign("/console/models");
  };
  return h(
    "section",
    { "aria-label": "Model" },
    h("h2", {}, h("bdi", {}, model.name)),
    h("dl.facts", {}, h("dt", {}, "Id"), h("dd", {}, copyable(model.id, "Model id")), h("dt", {}, "Created"), h("dd", {}, time(model.created_at))),
    h(
      "p.toolbar",
      {},
      h("button", { type: "button", needs: "workloads", "data-key": "rename", onclick: rename }, "Rename"),
      h("button.danger", { type: "button", needs: "workloads", "data-key": "delete", onclick: remove }, "Delete"),
    ),
  );
}

function deploymentList(path, { model, deployments, environments }, reload) {
  const pointing = (one) => environments.items.filter((environment) => environment.deployment_id === one.id).map(({ name }) => name);
  const create = () => askDeployment("POST", `${path}/deployments`).then((made) => made && location.assign(addressOf(model.id, made.id)));
  const columns = [
    { head: "Deployment", cell: (one) => h("a", { href: addressOf(model.id, one.id), "data-key": `open ${one.id}` }, h("bdi", {}, one.name)) },
    { head: "Status", cell: (one) => statusBadge(one.status) },
    { head: "Environments", cell: (one) => pointing(one).join(", ") || "–" },
    { head: "Healthy", number: true, cell: healthyOf },
    { head: "In flight", number: true, cell: (one) => count(one.load.in_flight) },
    { head: "Queued", number: true, cell: (one) => count(one.load.queued) },
    { head: "Parked", number: true, cell: (one) => count(one.load.parked) },
    { head: "Last call", cell: (one) => ago(one.load.last_request_at) },
    { head: "Actions", cell: (one) => verbs(`${path}${route`/deployments/${one.id}`}`, one, reload) },
  ];
  return h(
    "section",
    { "aria-label": "Deployments of the model" },
    h("h2", {}, "Deployments"),
    h("p.toolbar", {}, h("button.primary", { type: "button", needs: "workloads", "data-key": "new deployment", onclick: create }, "Create a deployment")),
    deployments.items.length ? table("Deployments", columns, deployments.items) : nothing("No deployment yet. Create one and set its replicas."),
    deployments.hasMore && h("p.soft", {}, `The first ${MOST} are shown.`),
  );
}

function environmentList(path, { model, deployments, environments }, reload) {
  const nameOf = (id) => deployments.items.find((one) => one.id === id)?.name ?? id;
  const remove = (name) =>
    confirmed("Delete the environment?", h("p", {}, "The deployment stays. It is refused while an endpoint leads to ", h("code", {}, name), "."), "Delete", () => send("DELETE", `${path}${route`/environments/${name}`}`)).then(reload);
  const columns = [
    { head: "Environment", cell: (one) => one.name },
    { head: "Deployment", cell: (one) => (one.deployment_id ? h("a", { href: addressOf(model.id, one.deployment_id) }, h("bdi", {}, nameOf(one.deployment_id))) : "none yet") },
    { head: "Changed", cell: (one) => ago(one.updated_at) },
    {
      head: "Actions",
      cell: ({ name, deployment_id }) => [
        h("button", { type: "button", needs: "workloads", "data-key": `point ${name}`, "aria-label": `Point ${name} elsewhere`, onclick: () => point(path, deployments.items, name, deployment_id).then(reload) }, "Point elsewhere"),
        " ",
        h("button.danger", { type: "button", needs: "workloads", "data-key": `remove ${name}`, "aria-label": `Delete environment ${name}`, onclick: () => remove(name) }, "Delete"),
      ],
    },
  ];
  return h(
    "section",
    { "aria-label": "Environments of the model" },
    h("h2", {}, "Environments"),
    h("p.toolbar", {}, h("button", { type: "button", needs: "workloads", "data-key": "new environment", disabled: deployments.items.length === 0, onclick: () => point(path, deployments.items, "", null).then(reload) }, "Point an environment")),
    environments.items.length ? table("Environments", columns, environments.items) : nothing("No environment yet. Endpoints need one: production, unless they name another."),
  );
}

function point(path, deployments, present, chosen) {
  return openDialog("Point an environment", (close) => {
    const name = h("input", { name: "environment_name", value: present || "production", required: true, readonly: present !== "", spellcheck: "false" });
    const target = select("deployment_id", deployments.map((one) => [one.id, `${one.name} (${one.status})`]), chosen);
    const save = async () => close(await send("PUT", `${path}${route`/environments/${name.value.trim()}`}`, { deployment_id: target.value }));
    return form("Point", [field("Environment", name), field("Deployment", target, "Calls of its slugs go there at once.")], save, { cancel: close });
  });
}
