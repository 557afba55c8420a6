// One training job: what it is, what it does, what it left.

import { read, route, send, withQuery } from "../api.mjs";
import { confirmed, openDialog } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { ago, bytes, count, duration, time } from "../format.mjs";
import { actionButton, copyable } from "../form.mjs";
import { keepFresh } from "../live.mjs";
import { logView } from "../log_view.mjs";
import { announce, nothing, problemNotice, remark } from "../notice.mjs";
import { table } from "../table.mjs";
import { Metrics, metricCharts } from "./training_metrics.mjs";
import { addressOf, hasEnded, jobBadge, statusOf } from "./training_status.mjs";

const EVERY_S = 3;
const FAILED = new Set(["FAILED", "DEPLOY_FAILED"]);

/** Draws a job into `main`. */
export async function drawJob(main, projectId, jobId) {
  const path = route`/v1/training_projects/${projectId}/jobs/${jobId}`;
  const [facts, curves, checkpoints] = [h("div"), h("div"), h("div")];
  main.append(
    h("p", {}, h("a", { href: "/console/training" }, "All projects"), " / ", h("a", { href: withQuery("/console/training", { project: projectId }) }, "The project")),
    facts,
    h("h2", {}, "Metrics"),
    curves,
    h("h2", {}, "Checkpoints"),
    checkpoints,
    h("h2", {}, "Log"),
    logView(`${path}/logs`),
  );
  const cards = h("div.cards");
  const metrics = new Metrics(`${path}/metrics`);
  const fresh = keepFresh(facts, EVERY_S, () => read(path), ({ training_job: job }) => shown(path, job, () => fresh.now()));
  keepFresh(curves, EVERY_S, () => metrics.load(), (points) => metricCharts(cards, points));
  keepFresh(checkpoints, 2 * EVERY_S, () => read(`${path}/checkpoints`), (loaded) => checkpointList(path, loaded.checkpoints));
}

function shown(path, job, reload) {
  const facts = [
    ["Id", copyable(job.id, "Job id")],
    ["Project", h("bdi", {}, job.training_project.name)],
    ["Instance", `${count(job.node_count)} × ${job.instance_type.name}`],
    ["Queue", `${job.availability_model}, priority ${job.priority}`],
    ["Created", time(job.created_at)],
    [hasEnded(job) ? "Ended" : "Changed", time(job.updated_at)],
    ["Age", duration(((hasEnded(job) ? Date.parse(job.updated_at) : Date.now()) - Date.parse(job.created_at)) / 1000)],
    ["Checkpoints", { SYNCING: "on their way into the store", COMPLETED: "all in the store" }[job.checkpoint_sync_status] ?? "none yet"],
  ];
  return [
    h("h2", {}, h("bdi", {}, job.name ?? job.id), " ", jobBadge(job)),
    job.error_message && remark(FAILED.has(statusOf(job)) ? "bad" : "warn", h("p", {}, job.error_message)),
    h("p.toolbar", {}, actions(path, job, reload)),
    h("dl.facts", {}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
  ];
}

function actions(path, job, reload) {
  const button = (text, act, needs, danger = "") => h(`button${danger}`, { type: "button", "data-key": text, needs, onclick: act }, text);
  const stop = () => confirmed("Stop the job?", h("p", {}, "Its nodes get SIGTERM, later SIGKILL. Checkpoints that are in the store stay."), "Stop", () => send("POST", `${path}/stop`)).then(reload);
  const remove = async () => {
    const explanation = h("p", {}, "Its log, metrics and checkpoints go with it.");
    if (await confirmed("Delete the job?", explanation, "Delete", () => send("DELETE", path), job.name ?? job.id)) location.assign(withQuery("/console/training", { project: job.training_project_id }));
  };
  const recreate = async () => {
    const { training_job: made } = await send("POST", `${path}/recreate`);
    location.assign(addressOf(made));
  };
  const begin = async () => {
    const { auth_codes: codes } = await send("POST", `${path}/interactive_session`);
    announce("The session begins");
    showCodes(path, codes);
  };
  return [
    !hasEnded(job) && button("Stop", stop, "workloads", ".danger"),
    actionButton("Recreate", recreate, { "data-key": "recreate", needs: "workloads", title: "A new job with this configuration, from the last checkpoint" }),
    statusOf(job) === "RUNNING" && [actionButton("Begin a session", begin, { "data-key": "begin", needs: "trust" }), button("Show session codes", () => showCodes(path), "trust")],
    hasEnded(job) && button("Delete", remove, "workloads", ".danger"),
  ];
}

/** The codes that open shells on the job's nodes: read when they are asked for, and forgotten with the dialog. */
function showCodes(path, given = []) {
  return openDialog("Interactive session", () => {
    const list = h("div", {}, codeList(given));
    const load = async () => list.replaceChildren(codeList((await read(`${path}/auth_codes`)).auth_codes));
    if (given.length === 0) load().catch((error) => list.replaceChildren(problemNotice(error)));
    return h("div", {}, h("p.soft", {}, "Open a node's page and type its code there. A code works once."), list, h("p.actions", {}, actionButton("Refresh", load)));
  });
}

function codeList(codes) {
  if (codes.length === 0) return nothing("No session is active. A session that has just begun appears in some seconds: refresh.");
  return h(
    "ul",
    {},
    codes.map((one) =>
      h(
        "li",
        {},
        h("p", {}, h("strong", {}, one.replica_id), " ", h("a", { href: one.auth_url, target: "_blank", rel: "noopener" }, "Open its page"), one.expires_at && [", the code expires ", ago(one.expires_at)]),
        copyable(one.auth_code, `Code of ${one.replica_id}`),
      ),
    ),
  );
}

function checkpointList(path, checkpoints) {
  if (checkpoints.length === 0) return nothing("No checkpoint. A job with checkpointing writes them below ", h("code", {}, "TOLLGATE_CHECKPOINT_DIR"), ".");
  return table(
    "Checkpoints",
    [
      { head: "Checkpoint", cell: (one) => h("code.nowrap", {}, one.checkpoint_id) },
      { head: "Created", cell: (one) => ago(one.created_at) },
      { head: "Type", cell: (one) => (one.base_model ? [one.checkpoint_type, " of ", h("bdi", {}, one.base_model)] : one.checkpoint_type) },
      { head: "Size", number: true, cell: (one) => bytes(one.size_bytes) },
      { head: "In the store", cell: (one) => (one.sync_status === "COMPLETE" ? "yes" : "on its way") },
      { head: "Files", cell: (one) => filesButton(path, one) },
    ],
    [...checkpoints].reverse(),
  );
}

function filesButton(path, { checkpoint_id: id, sync_status }) {
  const open = async () => {
    const { files } = await read(`${path}${route`/checkpoints/${id}/files`}`);
    openDialog("Files of the checkpoint", () => h("div", {}, h("p.soft", {}, "Whoever has a link may read that file for an hour."), fileTable(files)));
  };
  return actionButton("Files", open, { "data-key": `files ${id}`, needs: "workloads", "aria-label": `Files of ${id}`, disabled: sync_status === "SYNCING" });
}

function fileTable(files) {
  return table(
    "Files",
    [
      { head: "File", cell: (one) => h("a", { href: one.url, download: true }, h("bdi", {}, one.path)) },
      { head: "Size", number: true, cell: (one) => bytes(one.size_bytes) },
      { head: "SHA-256", cell: (one) => h("code", {}, one.sha256) },
    ],
    files,
  );
}
