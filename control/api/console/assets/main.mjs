// Starts the page that the address names: asks for the session, then draws the login, the page, or why it is not shown.

import { Problem, read } from "./api.mjs";
import { h } from "./dom.mjs";
import { PAGES, drawFrame, drawLogin, drawRefusal, refusalOf } from "./layout.mjs";
import { problemNotice } from "./notice.mjs";
import { drawChoice, mustChoose, organisationLink } from "./people.mjs";

const name = location.pathname.split("/")[2];

async function start() {
  if (name === "embed") return customerPage(null);
  const session = await currentSession();
  if (session === null) return drawLogin(await organisationLink());
  if (mustChoose(session)) return drawChoice(session);
  if (name === "usage" || session.kind === "FEDERATED") return customerPage(session);
  const page = PAGES.find((one) => one.name === name);
  const main = drawFrame(page, session);
  const refusal = refusalOf(page, session);
  if (refusal) return drawRefusal(main, refusal);
  const module = await import(`./pages/${page.name}.mjs`);
  await module.draw(main, { session, query: new URLSearchParams(location.search) });
}

async function customerPage(session) {
  const module = await import("./pages/usage.mjs");
  await module.draw(session);
}

/** The session, or null if nobody is logged in. */
async function currentSession() {
  try {
    return await read("/console/session");
  } catch (error) {
    if (error instanceof Problem && error.status === 401) return null;
    throw error;
  }
}

start().catch((error) => {
  const main = document.querySelector("main") ?? document.body.appendChild(h("main", { id: "main" }));
  main.append(problemNotice(error));
  if (!(error instanceof Problem)) throw error; // a fault of ours: the browser's console shows where
});
