// What the role of whoever is logged in may not do. A control says what it needs: `h("button", {needs: "policy"})`. One
// that may not be used stays where it is, can be focused, does nothing, and says which roles may.

import { denials, h } from "./dom.mjs";
import { announce } from "./notice.mjs";

/** What each permission is for, as the page says it. */
const MEANINGS = {
  read: "look",
  prices: "set prices",
  credits: "book credits",
  policy: "change endpoints, groups, limits and secrets",
  keys: "make, change and revoke keys and links",
  workloads: "change models, deployments and training",
  invoke: "call models",
  trust: "change webhooks, see signing secrets and session codes",
};
const NOTE = "role-note";

/** Why this session may not do what needs `permission`; null if it may. */
export function denialOf(session, permission) {
  if (!session.role || session.may.includes(permission)) return null;
  return `To ${MEANINGS[permission]} takes the role ${either(session.roles_that_may[permission])}. Yours is ${session.role}.`;
}

/** Disable, from now on, what this session's role may not use. Answers the note of it; false if there is nothing to say. */
export function roleNote(session) {
  const denied = Object.keys(MEANINGS).filter((permission) => denialOf(session, permission));
  for (const permission of denied) {
    denials.set(permission, { "aria-disabled": "true", "aria-describedby": `${NOTE}-${permission}`, title: denialOf(session, permission) });
  }
  document.addEventListener("click", stop, { capture: true });
  return (
    denied.length > 0 &&
    h(
      "details.role",
      { id: NOTE },
      h("summary", {}, "Your role is ", h("strong", {}, session.role), ". Pale controls need another one."),
      h("ul", {}, denied.map((permission) => h("li", { id: `${NOTE}-${permission}` }, denialOf(session, permission)))),
    )
  );
}

/** A press of Enter, in a form too, is a click on its button. */
function stop(event) {
  const control = event.target.closest("[aria-disabled='true']");
  if (!control) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  announce(control.title);
}

const either = (roles) => (roles.length > 1 ? `${roles.slice(0, -1).join(", ")} or ${roles.at(-1)}` : roles[0]);
