// Endpoints: slugs and where they lead. `?id=` or `?slug=` one of them; `?new=1` a new one.

import { read, readAll, route, send } from "../api.mjs";
import { confirmed } from "../dialog.mjs";
import { h } from "../dom.mjs";
import { actionButton, copyable, field } from "../form.mjs";
import { time } from "../format.mjs";
import { announce, nothing, problemNotice, remark } from "../notice.mjs";
import { pagedList, table } from "../table.mjs";
import { creationForm, targetEditor } from "./endpoints_form.mjs";
import { describeTarget, healthOf, trafficBadge } from "./endpoints_health.mjs";
import { removeLeftovers, TRIAL_NAME } from "./endpoints_trial.mjs";
import { ownerBadge, ownerWarning } from "./groups_data.mjs";

const MOST_SEARCHED = 10_000;
const addressOf = (endpoint) => `/console/endpoints?id=${encodeURIComponent(endpoint.id)}`;

/** Draws the page. */
export async function draw(main, { session, query }) {
  const [id, slug] = [query.get("id"), query.get("slug")];
  if (query.has("new")) return main.append(h("p", {}, h("a", { href: "/console/endpoints" }, "All endpoints")), h("h2", {}, "New endpoint"), await creationForm(session, slug, addressOf));
  const names = readNames();
  names.catch(() => {}); // said where it is shown
  if (id) return drawEndpoint(main, await read(route`/v1/gateway/endpoints/${id}`), session, await names);
  if (!slug) return drawList(main, names);
  const found = await withSlug(slug);
  if (found) return drawEndpoint(main, found, session, await names);
  main.append(remark("warn", h("p", {}, "No endpoint has the slug ", h("code", {}, slug), "."), h("p", {}, h("a", { href: `/console/endpoints?new=1&slug=${encodeURIComponent(slug)}` }, "Create it"), " or look at ", h("a", { href: "/console/endpoints" }, "all endpoints"), ".")));
}

/** Names of secrets and models by id, and the last hour's traffic by slug. */
async function readNames() {
  const traffic = read("/v1/gateway/traffic", { period: "hour", series: false });
  const [secrets, models, { items }] = await Promise.all([readAll("/v1/secrets"), readAll("/v1/models"), traffic]);
  const byId = (list) => new Map(list.items.map((one) => [one.id, one.name]));
  return { secrets: byId(secrets), models: byId(models), traffic: new Map(items.map((one) => [one.slug, one])) };
}

async function withSlug(slug) {
  const { items } = await readAll("/v1/gateway/endpoints", {}, MOST_SEARCHED);
  const one = items.find((endpoint) => endpoint.slug === slug);
  return one ? read(route`/v1/gateway/endpoints/${one.id}`) : null; // in the version that the form must not overwrite
}

async function drawList(main, names) {
  const slug = h("input", { type: "search", autocomplete: "off", spellcheck: "false" });
  const open = (event) => (event.preventDefault(), location.assign(`/console/endpoints?slug=${encodeURIComponent(slug.value.trim())}`));
  const search = h("form.inline", { onsubmit: open }, field("Slug", slug), h("p.actions", {}, h("button", { type: "submit" }, "Open")));
  const leftovers = h("div");
  main.append(h("div.toolbar", {}, search, h("a.button.primary", { href: "/console/endpoints?new=1", needs: "policy" }, "New endpoint")), leftovers);
  const known = await names;
  const list = pagedList(
    "/v1/gateway/endpoints",
    () => ({}),
    (items) => (offerCleaning(leftovers, items, list), endpointTable(items, known)),
    h("span", {}, "No endpoints yet. An endpoint maps a slug, which callers put in ", h("code", {}, "model"), ", to an upstream. ", h("a", { href: "/console/endpoints?new=1" }, "Create the first one"), "."),
  );
  main.append(list.element);
  await list.reload();
}

function endpointTable(items, known) {
  const columns = [
    { head: "Slug", cell: (one) => h("a", { href: addressOf(one) }, one.slug) },
    { head: "Health", cell: (one) => healthOf(one.targets[0]) },
    { head: "Errors (1 h)", number: true, cell: (one) => trafficBadge(one.slug, known) },
    { head: "Target", cell: (one) => h("span.words", {}, describeTarget(one.targets[0], known)) },
    { head: "Owner", cell: (one) => ownerBadge(one) ?? h("span.soft", {}, "none") },
    { head: "Changed", cell: (one) => time(one.updated_at) },
  ];
  return table("Endpoints", columns, items);
}

/** A test whose page was closed meanwhile leaves its endpoint. */
function offerCleaning(place, items, list) {
  const left = items.filter(({ slug }) => TRIAL_NAME.test(slug));
  if (!left.length) return place.replaceChildren();
  const clean = actionButton("Delete what tests left", async () => {
    for (const endpoint of left) await removeLeftovers(endpoint);
    announce("Deleted");
    await list.reload();
  }, { needs: "policy" });
  place.replaceChildren(remark("warn", h("p", {}, `${left.length} of these endpoints ${left.length === 1 ? "is" : "are"} of a test that runs now, or whose page was closed before it ended.`), clean));
}

async function drawEndpoint(main, endpoint, session, known) {
  const { id, slug } = endpoint;
  const value = encodeURIComponent(slug);
  const [target] = endpoint.targets;
  async function remove() {
    const what = h("div", {}, h("p", {}, "Callers of ", h("code", {}, slug), " get 404 within a second. Groups keep the slug in their lists, and the slug can be used again."), ownerWarning(endpoint));
    const isDone = await confirmed("Delete this endpoint?", what, "Delete", () => send("DELETE", route`/v1/gateway/endpoints/${id}`), slug);
    if (isDone) location.assign("/console/endpoints");
  }
  const editor = h("div");
  main.append(
    h("p", {}, h("a", { href: "/console/endpoints" }, "All endpoints")),
    h("h2", {}, slug),
    h(
      "div.toolbar",
      {},
      h("a.button", { href: `/console/playground?slug=${value}` }, "Call it"),
      h("a.button", { href: `/console/overview?slug=${value}` }, "Traffic"),
      h("a.button", { href: `/console/events?model_slug=${value}` }, "Events"),
      actionButton("Delete", remove, { class: "danger", needs: "policy" }),
    ),
    h(
      "dl.facts",
      {},
      h("dt", {}, "Id"),
      h("dd", {}, copyable(id, "Id of the endpoint")),
      h("dt", {}, "Target"),
      h("dd", {}, describeTarget(target, known)),
      endpoint.region !== "UNRESTRICTED" && [h("dt", {}, "Region"), h("dd", {}, endpoint.region)],
      h("dt", {}, "Health"),
      h("dd", {}, healthOf(target)),
      h("dt", {}, "Errors, last hour"),
      h("dd", {}, trafficBadge(slug, known)),
      endpoint.managed_by && [h("dt", {}, "Owner"), h("dd", {}, ownerBadge(endpoint), " applied ", time(endpoint.managed_by.applied_at))],
      h("dt", {}, "Created"),
      h("dd", {}, time(endpoint.created_at), ", changed ", time(endpoint.updated_at)),
    ),
    h("h2", {}, "Change the target"),
    h("p", {}, "Point the slug at another target. Keys, groups and limits stay as they are. Test the new target before you save it."),
    ownerWarning(endpoint) ?? "",
    editor,
  );
  try {
    editor.append(await targetEditor(session, slug, target, "Save the target", async (changed) => {
      await send("PATCH", route`/v1/gateway/endpoints/${id}`, { targets: [changed] }, { unchanged: endpoint });
      location.assign(addressOf(endpoint));
    }));
  } catch (error) {
    editor.append(nothing("The form cannot be shown."), problemNotice(error));
  }
}
