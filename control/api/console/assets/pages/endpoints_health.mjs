// Where a target leads, and what is known of its health.

import { Problem, read, route } from "../api.mjs";
import { h } from "../dom.mjs";
import { count } from "../format.mjs";
import { PROVIDERS } from "../tables.mjs";
import { errorRate } from "./error_rate.mjs";

const TONES = { ACTIVE: "good", UPDATING: "good", SCALED_TO_ZERO: "", WAKING_UP: "warn", LOADING_MODEL: "warn", DEPLOYING: "warn", BUILDING: "warn" };

/** In words, with links. `known`: names of secrets and models by id. */
export function describeTarget(target, known) {
  const { provider, model_id: model, secret_id: secret } = target;
  const cloud = target.vendor_c_config ?? target.vertex_config;
  return [
    PROVIDERS.find((one) => one.name === provider)?.title ?? provider,
    model && [": ", h("a", { href: `/console/models?id=${encodeURIComponent(model)}` }, h("bdi", {}, known.models.get(model) ?? model)), `, ${target.environment_name ?? "production"}`],
    target.target_model && [", model ", h("code", {}, target.target_model)],
    target.base_url && [" at ", h("code", {}, target.base_url)],
    cloud && [", project ", h("code", {}, `${cloud.project_id} / ${cloud.location}`)],
    secret && [", secret ", h("code", {}, known.secrets.get(secret) ?? secret)],
    target.dialects && [", speaks ", h("code", {}, target.dialects.join(", "))],
    target.upstream_state === "PASS" && ", state stored at the vendor passes",
    target.price_options === "REFUSE" && ", options with a price of their own are refused",
  ];
}

/** An element that says the status of a platform model's deployment once it is known; of others nothing is probed. */
export function healthOf({ model_id: model, environment_name: environment }) {
  if (!model) return h("span.soft", {}, "not probed");
  const place = h("span.soft", {}, "…");
  deploymentOf(model, environment ?? "production").then(
    (deployment) => place.replaceWith(deployment ? statusBadge(model, deployment) : noDeployment()),
    (error) => place.replaceWith(error instanceof Problem && error.status === 404 ? noDeployment() : h("span.soft", { title: error.message }, "not known")),
  );
  return place;
}

const asked = new Map(); // a page of endpoints names the same deployments again and again
let last = Promise.resolve(); // one after another: the API admits 100 requests a second

function deploymentOf(model, environment) {
  const key = `${model} ${environment}`;
  if (!asked.has(key)) {
    const mine = last.then(() => readDeployment(model, environment));
    last = mine.catch(() => {});
    asked.set(key, mine);
  }
  return asked.get(key);
}

async function readDeployment(model, environment) {
  return (await read(route`/v1/models/${model}/environments/${environment}`)).current_deployment;
}

const noDeployment = () => h("span.badge.bad", {}, "no deployment");

function statusBadge(model, { id, status, active_replica_count: replicas, replicas: listed }) {
  const tone = TONES[status] ?? "bad";
  const address = `/console/models?id=${encodeURIComponent(model)}&deployment=${encodeURIComponent(id)}`;
  return h("a", { href: address }, h(`span.badge${tone && `.${tone}`}`, {}, `${status.toLowerCase().replaceAll("_", " ")}, ${count(replicas)} of ${count(listed.length)} healthy`));
}

/** What share of the last hour's calls failed. */
export function trafficBadge(slug, known) {
  const item = known.traffic.get(slug);
  return item ? errorRate(item.errors, item.calls) : h("span.soft", {}, "no calls");
}
