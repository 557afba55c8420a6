// What the pages of training say alike: a job's status, and its address.

import { withQuery } from "../api.mjs";
import { h } from "../dom.mjs";

const PREFIX = "TRAINING_JOB_";
const TONES = { RUNNING: "good", COMPLETED: "good", FAILED: "bad", DEPLOY_FAILED: "bad", STOPPED: "" };
const ENDS = new Set(["COMPLETED", "FAILED", "DEPLOY_FAILED", "STOPPED"]);

/** The status of a job, without the API's prefix. */
export const statusOf = (job) => job.current_status.replace(PREFIX, "");

/** Whether nothing changes the job any more. */
export const hasEnded = (job) => ENDS.has(statusOf(job));

/** The status as a badge. */
export function jobBadge(job) {
  const tone = TONES[statusOf(job)] ?? "warn";
  return h(tone ? `span.badge.${tone}` : "span.badge", {}, statusOf(job).replace("_", " "));
}

/** The address of the job's page. */
export const addressOf = (job) => withQuery("/console/training", { project: job.training_project_id, job: job.id });
