// People who log in at their organisation's identity provider: the link to it, and which workspace they act in.

import { read, send } from "./api.mjs";
import { h } from "./dom.mjs";
import { actionButton } from "./form.mjs";
import { brand, logoutButton } from "./layout.mjs";

/** The link that begins such a login and leads back to this page; null if the operator has not set it up. */
export async function organisationLink() {
  const { organisation_login: isOffered } = await read("/console/tables.json");
  const here = location.pathname + location.search;
  return isOffered ? h("p", {}, h("a.button.primary", { href: `/console/login?return_to=${encodeURIComponent(here)}` }, "Log in with your organisation")) : null;
}

/** Return whether a person must choose a workspace first, or wants another one: `?choose=1`. */
export function mustChoose(session) {
  return session.workspace === null || (isSwitching() && session.choices.length > 1);
}

/** Draw the choice of a workspace and a role. */
export function drawChoice({ person, choices }) {
  document.title = "Choose a workspace · Tollgate";
  const buttons = choices.map(({ workspace, role }) => h("li", {}, actionButton(`${workspace.name}, as ${role}`, () => choose(workspace.id, role))));
  document.body.replaceChildren(
    h(
      "main.login",
      { id: "main" },
      brand(),
      h("h1", {}, "Choose a workspace"),
      h("p", {}, "You are ", h("bdi", {}, person), ". What you may do depends on your role there."),
      h("ul.choice", {}, buttons),
      h("p.actions", {}, logoutButton()),
    ),
  );
}

async function choose(workspaceId, role) {
  await send("PUT", "/console/session", { workspace_id: workspaceId, role });
  if (isSwitching()) location.assign("/console/overview"); // what this page showed belongs to the other workspace
  else location.reload();
}

function isSwitching() {
  return new URLSearchParams(location.search).has("choose");
}
