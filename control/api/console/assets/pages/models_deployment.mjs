// One deployment: status, load, replicas, settings, log.

import { read, readAll, route, send } from "../api.mjs";
import { confirmed } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { ago, count, time } from "../format.mjs";
import { actionButton, copyable } from "../form.mjs";
import { keepFresh } from "../live.mjs";
import { logView } from "../log_view.mjs";
import { announce, nothing, remark } from "../notice.mjs";
import { tile, tiles } from "../tiles.mjs";
import { addressOf, askDeployment, askReplicas, healthyOf, statusBadge } from "./models_forms.mjs";

const EVERY_S = 2;
const TAKEN_UP = new Set(["FAILED", "DEPLOY_FAILED", "DEACTIVATING", "INACTIVE"]);
const RETRIED = new Set(["FAILED", "DEPLOY_FAILED"]);

/** Draws a deployment into `main`. */
export async function drawDeployment(main, modelId, deploymentId) {
  const path = route`/v1/models/${modelId}/deployments/${deploymentId}`;
  const content = h("div");
  main.append(
    h("p", {}, h("a", { href: "/console/models" }, "All models"), " / ", h("a", { href: addressOf(modelId) }, "The model")),
    content,
    h("h2", {}, "Log"),
    logView(`${path}/logs`),
  );
  const load = async () => {
    const [deployment, environments] = await Promise.all([read(path), readAll(route`/v1/models/${modelId}/environments`, {}, 200)]);
    return { deployment, environments: environments.items.filter((one) => one.deployment_id === deployment.id).map(({ name }) => name) };
  };
  const fresh = keepFresh(content, EVERY_S, load, (loaded) => shown(path, loaded, () => fresh.now()));
}

function shown(path, { deployment, environments }, reload) {
  const { load } = deployment;
  const remove = async () => {
    const explanation = h("p", {}, "Its log goes with it. It is refused while an environment points to it.");
    if (await confirmed("Delete the deployment?", explanation, "Delete", () => send("DELETE", path), deployment.name)) location.assign(addressOf(deployment.model_id));
  };
  return [
    h("h2", {}, h("bdi", {}, deployment.name), " ", statusBadge(deployment.status)),
    deployment.error_message && remark("bad", h("p", {}, deployment.error_message)),
    figures([["Healthy replicas", healthyOf(deployment)], ["In flight", count(load.in_flight)], ["Queued", count(load.queued)], ["Parked", count(load.parked)]]),
    h(
      "p.toolbar",
      {},
      verbs(path, deployment, reload),
      h("button", { type: "button", needs: "workloads", "data-key": "replicas", onclick: () => askReplicas(path, deployment.replicas).then(reload) }, "Set the replicas"),
      h("button", { type: "button", needs: "workloads", "data-key": "change", onclick: () => askDeployment("PATCH", path, deployment).then(reload) }, "Change the settings"),
      h("button.danger", { type: "button", needs: "workloads", "data-key": "delete", onclick: remove }, "Delete"),
    ),
    h("div.cards", {}, settings(deployment, environments), replicas(deployment)),
  ];
}

const figures = (pairs) => tiles(pairs.map(([name, value]) => tile(name, value)));

function settings(deployment, environments) {
  const { health } = deployment;
  const facts = [
    ["Id", copyable(deployment.id, "Deployment id")],
    ["Environments", environments.join(", ") || "none points to it"],
    ["Last call", ago(deployment.load.last_request_at)],
    ["Wake URL", deployment.wake_url ? h("code", {}, deployment.wake_url) : "none: nobody is asked for replicas"],
    ["Health", health ? `${health.path} every ${health.interval_s} s, ${health.timeout_s} s at most; healthy after ${health.healthy_after}, unhealthy after ${health.unhealthy_after}` : "not probed"],
    ["Calls per replica", deployment.max_concurrency === null ? "no bound" : `${count(deployment.max_concurrency)} in flight, ${count(deployment.max_queued)} waiting`],
    ["Created", time(deployment.created_at)],
    ["Changed", time(deployment.updated_at)],
  ];
  return h("section.card", { "aria-label": "Settings" }, h("h3", {}, "Settings"), h("dl.facts", {}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

function replicas({ replicas: urls, active_replica_count }) {
  return h(
    "section.card",
    { "aria-label": "Replicas" },
    h("h3", {}, "Replicas"),
    urls.length === 0 ? nothing("None. Set the replicas, or let a wake URL launch them.") : h("p", {}, `${active_replica_count} healthy, ${urls.length - active_replica_count} unhealthy.`),
    h("ul", {}, urls.map((url) => h("li", {}, h("code", {}, url)))),
  );
}

/** The buttons for what the deployment's status permits. */
export function verbs(path, deployment, reload) {
  const { id, name, status } = deployment;
  const act = (verb) => async () => {
    const answer = await send("POST", `${path}/${verb}`);
    announce(answer.retried === false ? answer.reason : `${name}: ${verb} was accepted`);
    await reload();
  };
  const named = (verb) => ({ needs: "workloads", "data-key": `${verb} ${id}`, "aria-label": `${verb} ${name}` });
  const deactivate = () => confirmed("Deactivate the deployment?", h("p", {}, "Its calls are refused until it is activated. It keeps its list of replicas."), "Deactivate", act("deactivate"));
  return h(
    "span.choices",
    {},
    TAKEN_UP.has(status) && actionButton("Activate", act("activate"), named("Activate")),
    RETRIED.has(status) && actionButton("Retry", act("retry"), named("Retry")),
    status !== "INACTIVE" && status !== "DEACTIVATING" && h("button", { type: "button", ...named("Deactivate"), onclick: deactivate }, "Deactivate"),
  );
}
