// Which key a call of the playground is made with. A pasted key stays in its field: it is neither stored nor shown.

import { Problem, read, route, send } from "../api.mjs";
import { confirmed } from "../dialog.mjs";
import { h, redraw } from "../dom.mjs";
import { actionButton, field, select } from "../form.mjs";
import { announce, remark } from "../notice.mjs";
import { TEST_ENTITY, testKey } from "./test_calls.mjs";

const NAME = "playground";

/**
 * The fields. `slug`: the input of the slug. Answers `{element, forDialect, chosen}`; `chosen()` is
 * `{apiKey, prefix, group}`: `apiKey` null is the session's own, `prefix` null is not known, `group` is known for keys
 * that were minted here.
 */
export function keyChoice(session, slug) {
  const pasted = h("input", { type: "password", name: "key", autocomplete: "off", spellcheck: "false" });
  const pastedField = field("Key of a group", pasted, "Stays in this field. A group's key calls the slugs of its group.");
  const canTest = session.may_manage && session.onboarded;
  const hasKey = !session.person;
  const first = canTest ? "test" : "pasted"; // for slugs
  const sources = [canTest && ["test", "A test key, of no customer"], ["pasted", hasKey ? "A group's key" : "A key that you paste"], hasKey && ["session", `This session's key, ${session.prefix}`]];
  const source = select("source", sources.filter(Boolean), first);
  const hint = h("div");
  const minted = { key: null, prefix: null, group: null };
  let test = null; // the test key of this page, and the slug that it may call
  const helper = canTest && mintHelper(slug, minted, (key) => {
    pasted.value = key;
    source.value = "pasted";
    source.dispatchEvent(new Event("input", { bubbles: true }));
  });

  let isDirect = null;

  function forDialect(dialect) {
    if (isDirect !== Boolean(dialect.isDirect)) {
      isDirect = Boolean(dialect.isDirect);
      source.value = isDirect ? (hasKey ? "session" : "pasted") : first; // each kind of call takes one kind of key
    }
    const isOwn = source.value === "session";
    const isPasted = source.value === "pasted";
    pastedField.hidden = !isPasted;
    if (helper) helper.hidden = !isPasted;
    const isRefused = isDirect ? !isOwn && (hasKey || !isPasted) : isOwn;
    if (isDirect && !hasKey) redraw(hint, remark("warn", "Direct calls need a workspace key, and you logged in without one: paste one. It is used for this call alone."));
    else if (isRefused) redraw(hint, remark("warn", isDirect ? "Direct calls need a workspace key: choose this session's." : "The proxy refuses workspace keys on slugs: use a group's key."));
    else if (isPasted) redraw(hint, remark("warn", "The call is this customer's: it counts in its limits, usage and bill."));
    else if (isOwn) redraw(hint);
    else redraw(hint, h("p.soft", {}, "Billed to the group ", h("code", {}, TEST_ENTITY), ", which the first test call makes. Give it limits, if tests are to have some. The key is revoked when you leave this page."));
  }

  /** The key for calls of `slug`; a test key is made with the first one. */
  async function chosen(slug) {
    if (source.value === "test") {
      if (!slug) throw new Problem(400, "NO_SLUG", "Name a slug to test.", [{ field: "slug", message: "Name a slug to test." }]);
      if (test?.slug !== slug) {
        const before = test;
        test = null;
        await before?.key.end();
        test = { slug, key: await testKey(slug) };
      }
      const { apiKey, prefix, group } = test.key;
      return { apiKey, prefix, group };
    }
    if (source.value === "session") return { apiKey: null, prefix: session.prefix, group: null };
    const key = pasted.value.trim();
    if (!key) throw new Problem(400, "NO_KEY", "Paste a group's key.", [{ field: "key", message: "Paste a group's key." }]);
    return { apiKey: key, prefix: publicPart(key), group: key === minted.key ? minted.group : null };
  }

  return { element: h("div", {}, field("Key", source), hint, pastedField, helper), forDialect, chosen };
}

/** What of a key may stand in a URL: null for one that its owner registered, as no part of it is public. */
function publicPart(key) {
  return key.startsWith("tg_") && key.includes(".") ? key.split(".")[0] : null;
}

function mintHelper(slug, minted, fill) {
  const entity = h("input", { name: "entity", list: "entities", autocomplete: "off", spellcheck: "false" });
  const entities = h("datalist", { id: "entities" });
  const state = h("div");
  const helper = h(
    "details",
    {},
    h("summary", {}, "Create a key for a group"),
    field("Group", entity, "The group's external id. The key is a real one; revoke it when you are done."),
    entities,
    actionButton("Create a key", mint),
    state,
  );
  helper.addEventListener("toggle", suggest, { once: true });

  async function suggest() {
    const { items } = await read("/v1/gateway/groups", { limit: 200 });
    entities.replaceChildren(...items.map(({ metadata }) => h("option", { value: metadata.external_entity_id }, metadata.name ?? "")));
  }

  async function mint() {
    const wanted = entity.value.trim();
    const found = wanted ? (await read("/v1/gateway/groups", { external_entity_id: wanted })).items : [];
    if (found.length === 0) throw new Problem(404, "NOT_FOUND", "No group has this external id.");
    const [group] = found;
    const made = await send("POST", route`/v1/gateway/groups/${group.id}/api_keys`, { name: NAME });
    Object.assign(minted, { key: made.api_key, prefix: made.prefix, group });
    fill(made.api_key);
    redraw(state, mintedNotice(group, made.prefix));
    announce("Created");
  }

  function mintedNotice(group, prefix) {
    const slugs = group.models.map((one) => one.slug);
    const wanted = slug.value.trim();
    return remark(
      "good",
      h("p", {}, "Created ", h("code", {}, prefix), " for ", groupLink(group), "; it is in the field above."),
      wanted && !slugs.includes(wanted) && h("p", {}, h("strong", {}, "This group may not call "), h("code", {}, wanted), slugs.length > 0 && [". It may call ", h("code", {}, slugs.slice(0, 5).join(", ")), slugs.length > 5 && " and others"], "."),
      actionButton("Revoke this key", () => revoke(group, prefix), { class: "danger" }),
    );
  }

  async function revoke(group, prefix) {
    const path = route`/v1/gateway/groups/${group.id}/api_keys/${prefix}`;
    const isDone = await confirmed("Revoke the key", h("p", {}, "Calls with ", h("code", {}, prefix), " are refused from now on."), "Revoke", () => send("DELETE", path));
    if (!isDone) return;
    if (minted.prefix === prefix) fill("");
    redraw(state, remark("", "Revoked ", h("code", {}, prefix), "."));
    announce("Revoked");
  }

  return helper;
}

/** A link to a group's page. */
export function groupLink(group) {
  return h("a", { href: `/console/groups?id=${encodeURIComponent(group.id)}` }, group.metadata.external_entity_id);
}
