// What surrounds every page: navigation, who is logged in, light and dark; the login; and the refusal of a key without scope.

import { answered, problemOf, send } from "./api.mjs";
import { h, newId } from "./dom.mjs";
import { actionButton, field, form } from "./form.mjs";
import { denialOf, roleNote } from "./roles.mjs";
import { searchField } from "./search.mjs";

/**
 * The pages, in the order of the navigation. `withoutScope`: a key without management scope can use it too. `needs`: the
 * permission without which a page shows nothing.
 */
export const PAGES = [
  { name: "overview", title: "Overview" },
  { name: "requests", title: "Requests" },
  { name: "spend", title: "Spend" },
  { name: "groups", title: "Groups" },
  { name: "endpoints", title: "Endpoints" },
  { name: "prices", title: "Prices" },
  { name: "secrets", title: "Secrets" },
  { name: "keys", title: "Keys" },
  { name: "events", title: "Events" },
  { name: "webhooks", title: "Webhooks" },
  { name: "models", title: "Models" },
  { name: "async", title: "Async", needs: "invoke" },
  { name: "training", title: "Training" },
  { name: "audit", title: "Audit" },
  { name: "playground", title: "Playground", withoutScope: true, needs: "invoke" },
];
/** The sections of the navigation. A page that is in none of them is in the last one. */
export const SECTIONS = {
  Monitor: ["overview", "requests", "audit"],
  Access: ["groups", "endpoints", "keys", "secrets"],
  Billing: ["spend", "prices", "events", "webhooks"],
  Models: ["models", "async", "training", "playground"],
};
const KINDS = {
  WORKSPACE_MANAGE_ALL: "manages everything",
  WORKSPACE_INVOKE: "may only call models",
  WORKSPACE_EXPORT_METRICS: "may only read metrics",
  FEDERATED: "key of a group",
};
const THEMES = [["", "System"], ["light", "Light"], ["dark", "Dark"]];

applyTheme(storedTheme());

/** Draw the frame of `page`; answers its empty `<main>`, with the heading. */
export function drawFrame(page, session) {
  document.title = `${page.title} · Tollgate`;
  const note = roleNote(session);
  const main = h("main", { id: "main", tabindex: -1 }, h("h1", {}, page.title));
  document.body.replaceChildren(
    h("a.skip", { href: "#main" }, "Skip to the page"),
    h("header", {}, brand(), menuButton(), session.may_manage && searchField(), h("div.who", {}, whoIs(session), themeChoice(), logoutButton())),
    ...[note].filter(Boolean), // the DOM would write what is not there as text
    h("div.columns", {}, navigation(page, session), main),
  );
  return main;
}

/** The frame of a page outside the navigation: a customer's usage. `session`: null shows no logout. */
export function drawPlainFrame(title, session) {
  document.title = `${title} · Tollgate`;
  const main = h("main.alone", { id: "main", tabindex: -1 }, h("h1", {}, title));
  document.body.replaceChildren(
    h("header", {}, brand(), h("div.who", {}, session && whoIs(session), themeChoice(), session && logoutButton())),
    main,
  );
  return main;
}

/** The login: a key for a session. `organisation`: the link to another way in, or null. */
export function drawLogin(organisation) {
  document.title = "Log in · Tollgate";
  const key = h("input", { type: "password", name: "api_key", autocomplete: "current-password", required: true, spellcheck: "false" });
  const login = form("Log in", field("API key", key, "A workspace key shows the console. The key of a group shows that group's usage."), async () => {
    await send("POST", "/console/session", { api_key: key.value.trim() });
    location.reload();
  });
  document.body.replaceChildren(h("main.login", { id: "main" }, brand(), h("h1", {}, "Log in"), organisation, organisation && h("h2", {}, "With a key"), login));
  (organisation?.querySelector("a") ?? key).focus();
}

/** Why the session may not use this page: elements for `drawRefusal`, or null. */
export function refusalOf(page, session) {
  if (!session.may_manage && !page.withoutScope) {
    return [
      h("p", {}, `${page.title} needs a key with management scope. You are logged in with `, h("code", {}, session.prefix), `, which ${KINDS[session.kind]}.`),
      h("p", {}, "Ask for a key of type ", h("code", {}, "WORKSPACE_MANAGE_ALL"), ", log out, and log in with it. You can use the ", h("a", { href: "/console/playground" }, "playground"), " now."),
    ];
  }
  const denial = page.needs && denialOf(session, page.needs);
  return denial ? [h("p", {}, `${page.title} cannot be used with your role. `, denial)] : null;
}

/** Say that the session may not see this page, and what to do. */
export const drawRefusal = (main, refusal) => main.append(h("div.notice.warn", {}, refusal));

/** The product's name, which leads to the first page. */
export function brand() {
  return h("a.brand", { href: "/console" }, h("img", { src: "/console/assets/icon.svg", alt: "", width: 24, height: 24 }), h("span", {}, "Tollgate"));
}

function whoIs(session) {
  const name = session.group ? session.group.external_entity_id : session.workspace.name || session.workspace.id;
  if (session.person) return whichPerson(session, name);
  const may = session.role && session.role !== "admin" ? `with the role ${session.role}` : KINDS[session.kind];
  return h("span.session", { title: `${name}: ${session.prefix}, ${may}` }, h("strong", {}, name), " ", h("code", {}, session.prefix));
}

function whichPerson({ person, role, choices }, workspace) {
  const other = choices.length > 1 && [" ", h("a", { href: "/console/overview?choose=1" }, "Switch workspace")];
  return h("span.session", { title: `${workspace}: ${person}, ${role}` }, h("strong", {}, workspace), " ", h("bdi", {}, person.split(" ")[0]), `, ${role}`, other);
}

function navigation(current, session) {
  const shown = PAGES.filter((page) => session.may_manage || page.withoutScope);
  const link = (page) => h("li", {}, h("a", { href: `/console/${page.name}`, "aria-current": page === current && "page" }, page.title));
  const sections = Object.keys(SECTIONS).map((section) => {
    const pages = shown.filter(({ name }) => sectionOf(name) === section);
    const id = newId();
    return pages.length > 0 && [h("p", { id }, section), h("ul", { "aria-labelledby": id }, pages.map(link))];
  });
  return h("nav", { id: "pages", "aria-label": "Pages" }, sections);
}

const sectionOf = (name) => Object.keys(SECTIONS).find((section) => SECTIONS[section].includes(name)) ?? Object.keys(SECTIONS).at(-1);

function menuButton() {
  const button = h("button.menu", { type: "button", "aria-expanded": "false", "aria-controls": "pages" }, "Pages");
  button.addEventListener("click", () => {
    const isOpen = document.getElementById("pages").classList.toggle("open");
    button.setAttribute("aria-expanded", String(isOpen));
  });
  return button;
}

/** Ends the session, and then the one at a person's identity provider, where control knows how. */
export function logoutButton() {
  async function logout() {
    const answer = await answered("/console/session", { method: "DELETE", credentials: "same-origin" });
    if (!answer.ok) throw await problemOf(answer);
    location.assign(answer.status === 200 ? (await answer.json()).continue_at : "/console");
  }
  return actionButton("Log out", logout);
}

function themeChoice() {
  const id = newId();
  const options = THEMES.map(([value, text]) => h("option", { value, selected: value === storedTheme() }, text));
  const choice = h("select", { id, onchange: () => applyTheme(choice.value) }, options);
  return h("span.theme", {}, h("label.hidden", { for: id }, "Colours"), choice);
}

function storedTheme() {
  try {
    return localStorage.getItem("theme") ?? "";
  } catch {
    return ""; // storage is blocked, as in some embedded pages: the system decides
  }
}

function applyTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // Blocked: the choice lasts as long as the page.
  }
}
