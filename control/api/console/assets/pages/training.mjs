// Training: projects and their jobs.

import { read, route, send, withQuery } from "../api.mjs";
import { confirmed } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { ago, count } from "../format.mjs";
import { field, select } from "../form.mjs";
import { keepFresh } from "../live.mjs";
import { nothing } from "../notice.mjs";
import { table } from "../table.mjs";
import { askName } from "./models_forms.mjs";
import { drawJob } from "./training_job.mjs";
import { addressOf, jobBadge } from "./training_status.mjs";

const EVERY_S = 5;
const STEP = 100;
const STATUSES = ["CREATED", "PENDING", "DEPLOYING", "RUNNING", "COMPLETED", "FAILED", "DEPLOY_FAILED", "STOPPED"];

/** Draws the page. */
export async function draw(main, { query }) {
  const [projectId, jobId] = [query.get("project"), query.get("job")];
  if (projectId && jobId) return drawJob(main, projectId, jobId);
  const status = query.get("status") ?? "";
  if (projectId) await drawProject(main, projectId);
  const filter = select("status", [["", "all"], ...STATUSES.map((one) => [one, one.toLowerCase().replace("_", " ")])], status, {
    onchange: () => location.assign(withQuery("/console/training", { project: projectId, status: filter.value })),
  });
  main.append(h("h2", {}, "Jobs"), h("div.toolbar", {}, field("Status", filter)));
  drawJobs(main, projectId, status);
  if (!projectId) drawProjects(main);
}

async function drawProject(main, id) {
  const path = route`/v1/training_projects/${id}`;
  const { training_project: project } = await read(path);
  const remove = async () => {
    const explanation = h("p", {}, "All of its jobs, their logs and their checkpoints go with it.");
    if (await confirmed("Delete the project?", explanation, "Delete", () => send("DELETE", path), project.name)) location.assign("/console/training");
  };
  main.append(
    h("p", {}, h("a", { href: "/console/training" }, "← All projects")),
    h("h2", {}, h("bdi", {}, project.name)),
    h("dl.facts", {}, h("dt", {}, "Id"), h("dd", {}, h("code", {}, project.id)), h("dt", {}, "Created"), h("dd", {}, ago(project.created_at))),
    h("p.toolbar", {}, h("button.danger", { type: "button", needs: "workloads", onclick: remove }, "Delete the project")),
  );
}

function drawJobs(main, projectId, status) {
  const list = h("div");
  const more = h("button", { type: "button", hidden: true, onclick: () => longer() }, "Show more");
  main.append(list, h("p", {}, more));
  let shown = STEP;
  const search = () => send("POST", "/v1/training_jobs/search", { project_id: projectId, statuses: status ? [`TRAINING_JOB_${status}`] : null });
  const fresh = keepFresh(list, EVERY_S, search, ({ training_jobs: jobs }) => {
    more.hidden = jobs.length <= shown;
    if (jobs.length === 0) return nothing("No job. ", h("code", {}, "POST /v1/training_projects/…/jobs"), " creates one.");
    return [jobTable(jobs.slice(0, shown)), jobs.length > shown && h("p.soft", {}, `The newest ${count(shown)} of ${count(jobs.length)} that were found.`)];
  });
  function longer() {
    shown += STEP;
    return fresh.now();
  }
}

function jobTable(jobs) {
  return table(
    "Training jobs",
    [
      { head: "Job", cell: (one) => h("a", { href: addressOf(one), "data-key": `open ${one.id}` }, h("bdi", {}, one.name ?? one.id)) },
      { head: "Status", cell: (one) => jobBadge(one) },
      { head: "Project", cell: (one) => h("a", { href: withQuery("/console/training", { project: one.training_project_id }) }, h("bdi", {}, one.training_project.name)) },
      { head: "Instance", cell: (one) => (one.node_count > 1 ? `${count(one.node_count)} × ${one.instance_type.name}` : one.instance_type.name) },
      { head: "Why", cell: (one) => one.error_message ?? "–" },
      { head: "Created", cell: (one) => ago(one.created_at) },
      { head: "Changed", cell: (one) => ago(one.updated_at) },
    ],
    jobs,
  );
}

function drawProjects(main) {
  const list = h("div");
  const create = async (name) => {
    const { training_project: made } = await send("POST", "/v1/training_projects", { training_project: { name } });
    location.assign(withQuery("/console/training", { project: made.id }));
  };
  main.append(
    h("h2", {}, "Projects"),
    h("p.toolbar", {}, h("button", { type: "button", needs: "workloads", onclick: () => askName("Create a project", "Create", "", create) }, "Create a project")),
    list,
  );
  keepFresh(list, 3 * EVERY_S, () => read("/v1/training_projects"), ({ training_projects: projects }) => (projects.length ? projectTable(projects) : nothing("No project yet. Create one for your jobs.")));
}

function projectTable(projects) {
  const latest = (job) => (job ? [h("a", { href: addressOf(job), "data-key": `latest ${job.id}` }, h("bdi", {}, job.name ?? job.id)), " ", jobBadge(job)] : "no job yet");
  return table(
    "Training projects",
    [
      { head: "Project", cell: (one) => h("a", { href: withQuery("/console/training", { project: one.id }), "data-key": `project ${one.id}` }, h("bdi", {}, one.name)) },
      { head: "Latest job", cell: (one) => latest(one.latest_job) },
      { head: "Changed", cell: (one) => ago(one.updated_at) },
    ],
    projects,
  );
}
