// What went wrong or well, said where people and screen readers notice it.

import { Problem } from "./api.mjs";
import { h } from "./dom.mjs";

/** What an error says, in a sentence. */
export const problemText = (error) => (error instanceof Problem ? error.message : "The console failed. Reload the page; if it happens again, report it.");

/** An error as a box; read aloud at once. Fields that the API named are listed. */
export function problemNotice(error) {
  const told = problemText(error);
  const fields = error instanceof Problem ? error.details.filter((one) => !told.startsWith(one.message)) : [];
  return h(
    "div.notice.bad",
    { role: "alert" },
    h("p", {}, told),
    fields.length > 0 && h("ul", {}, fields.map((one) => h("li", {}, h("code", {}, one.field), " ", one.message, one.conflict && [" ", conflictLink(one.conflict)]))),
    error.retryAfterS && h("p", {}, `Try again in ${error.retryAfterS} s.`),
  );
}

/** Leads to the limit of another group that forbids one of the request. */
function conflictLink({ group_id, external_entity_id }) {
  return h("a", { href: `/console/groups?id=${encodeURIComponent(group_id)}&edit=1` }, "Edit ", h("bdi", {}, external_entity_id));
}

/** A plain remark in a box. `kind`: "", "good", "warn", "bad". */
export const remark = (kind, ...children) => h(`div.notice${kind && `.${kind}`}`, { role: kind === "bad" ? "alert" : null }, ...children);

/** What there is to say when a list is empty, and what to do about it. */
export const nothing = (...children) => h("p.empty", {}, ...children);

/** Say that something is done, in the corner, for some seconds. */
export function announce(text) {
  let region = document.getElementById("announcements");
  if (!region) {
    region = h("div.announcements", { id: "announcements", role: "status", "aria-live": "polite" });
    document.body.append(region);
  }
  const said = h("p", {}, text);
  region.append(said);
  setTimeout(() => said.remove(), 6000);
}
