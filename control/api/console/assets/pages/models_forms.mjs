// The forms of models and deployments, and the badge of a status.

import { send, withQuery } from "../api.mjs";
import { openDialog } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { field, form } from "../form.mjs";

const TONES = { ACTIVE: "good", FAILED: "bad", DEPLOY_FAILED: "bad", UNHEALTHY: "bad", INACTIVE: "", SCALED_TO_ZERO: "" };
const PROBE = { path: "/health", interval_s: 5, timeout_s: 2, healthy_after: 1, unhealthy_after: 3 };
const PROBE_LABELS = {
  path: "Path",
  interval_s: "Seconds between probes",
  timeout_s: "Seconds until a probe is bad",
  healthy_after: "Good probes until healthy",
  unhealthy_after: "Bad probes until unhealthy",
};

/** The status of a deployment. */
export function statusBadge(status) {
  const tone = TONES[status] ?? "warn";
  return h(tone ? `span.badge.${tone}` : "span.badge", {}, status);
}

/** `1 of 2`: how many replicas are healthy. */
export const healthyOf = ({ active_replica_count, replicas }) => `${active_replica_count} of ${replicas.length}`;

/** The address of a model's or a deployment's page. */
export const addressOf = (modelId, deploymentId = null) => withQuery("/console/models", { id: modelId, deployment: deploymentId });

/** Ask for a name; `act(name)` uses it. */
export function askName(title, verb, present, act) {
  return openDialog(title, (close) => {
    const name = h("input", { name: "name", value: present, required: true, maxlength: 255 });
    return form(verb, field("Name", name), async () => close(await act(name.value.trim())), { cancel: close });
  });
}

/** Ask for the settings of a deployment, new or present, and send them. Answers what the API answered. */
export function askDeployment(method, path, present = null) {
  return openDialog(present ? "Change the deployment" : "Create a deployment", (close) => {
    const name = h("input", { name: "name", value: present?.name ?? "", required: true, maxlength: 255 });
    const wakeUrl = h("input", { name: "wake_url", value: present?.wake_url ?? "", spellcheck: "false" });
    const [concurrency, queued] = [number("max_concurrency", present?.max_concurrency ?? ""), number("max_queued", present?.max_queued ?? 100)];
    const probe = probeControls(present?.health ?? null);
    const fields = [
      field("Name", name),
      field("Wake URL", wakeUrl, "Asked for replicas when calls wait for them. Empty: nobody is asked."),
      field("Calls in flight per replica", concurrency, "Per proxy machine. Empty: no bound."),
      field("Calls that may wait per replica", queued),
      probe.fields,
    ];
    const save = async () => {
      const settings = { name: name.value.trim(), wake_url: wakeUrl.value.trim() || null, max_concurrency: numberOf(concurrency), max_queued: numberOf(queued) };
      close(await send(method, path, { ...settings, health: probe.value() }));
    };
    return form(present ? "Save" : "Create", fields, save, { cancel: close });
  });
}

function probeControls(health) {
  const isProbed = h("input", { type: "checkbox", checked: health !== null, onchange: () => show() });
  const shown = { ...PROBE, ...health };
  const controls = Object.keys(PROBE).map((name) => (name === "path" ? h("input", { name: "health.path", value: shown.path }) : number(`health.${name}`, shown[name])));
  const details = h("fieldset", {}, h("legend", {}, "Probes"), Object.keys(PROBE).map((name, at) => field(PROBE_LABELS[name], controls[at])));
  const show = () => (details.hidden = !isProbed.checked);
  const value = () => {
    if (!isProbed.checked) return null;
    return Object.fromEntries(Object.keys(PROBE).map((name, at) => [name, name === "path" ? controls[at].value.trim() : numberOf(controls[at])]));
  };
  show();
  return { fields: [h("p", {}, h("label", {}, isProbed, " Probe the replicas' health")), details], value };
}

const number = (name, value) => h("input", { name, type: "number", min: 0, step: "any", value });
const numberOf = (control) => (control.value === "" ? null : Number(control.value));

/** Ask for the whole list of replicas and set it. */
export function askReplicas(path, present) {
  return openDialog("Set the replicas", (close) => {
    const urls = h("textarea", { name: "replicas", spellcheck: "false", placeholder: "http://10.0.0.5:8000" });
    urls.value = present.join("\n");
    const save = async () => {
      const replicas = urls.value.split("\n").map((one) => one.trim()).filter(Boolean);
      close(await send("PUT", `${path}/replicas`, { replicas }));
    };
    const hint = "Base URLs, one a line; this is the whole list. An empty list scales the deployment to zero.";
    return form("Set the replicas", field("Replicas", urls, hint), save, { cancel: close });
  });
}
