// What a change of a group's models and limits means for it and for the groups below it, in words.
// The rules are those of policy/limits/groups.py and policy/limits/effective.py; whether a change is allowed the API says.

import { count } from "../format.mjs";
import { isSameKind, KINDS, kindText } from "../limit_kinds.mjs";

const MOST_NAMED = 8;

export const nameOf = (group) => group.metadata.external_entity_id;

/** The limit that the group itself sets, or null. `kind`: `{slug, type, unit}`. */
export function ownLimit(group, { slug, type, unit }) {
  const entry = group.models.find((one) => one.slug === slug);
  const limits = entry ? [...entry.rate_limits, ...entry.usage_limits] : [];
  return limits.find((one) => isSameKind(one, { type, unit }))?.threshold ?? null;
}

const mayCall = (group, slug) => group.models.some((one) => one.slug === slug);

/** In an INDEPENDENT tree: the limit of the nearest of `path`, a group and those above it: `{threshold, group}` or null. */
export function nearest(path, kind) {
  const group = path.find((one) => ownLimit(one, kind) !== null);
  return group ? { threshold: ownLimit(group, kind), group } : null;
}

/** What changes: `{slug, what, was, becomes, words}`; `words` are sentences on who notices. */
export function changes(before, after, ancestors, descendants) {
  const slugs = [...new Set([...before.models, ...after.models].map((entry) => entry.slug))].sort();
  return slugs.flatMap((slug) => [
    ...accessChange(slug, before, after, descendants),
    ...KINDS.flatMap((kind) => limitChange({ slug, ...kind }, { before, after, ancestors, descendants })),
  ]);
}

function accessChange(slug, before, after, descendants) {
  const [had, has] = [mayCall(before, slug), mayCall(after, slug)];
  if (had === has) return [];
  const others = descendants.filter((group) => mayCall(group, slug));
  const words = has ? ["Keys of this group may call it."] : ["Keys of this group get 404 for it, within a second."];
  if (!has && others.length) words.push(`Groups below keep their access: ${names(others)}.`);
  return [{ slug, what: "access", was: had ? "yes" : "no", becomes: has ? "yes" : "no", words }];
}

function limitChange(kind, { before, after, ancestors, descendants }) {
  const [was, becomes] = [ownLimit(before, kind), ownLimit(after, kind)];
  if (was === becomes) return [];
  const users = descendants.filter((group) => mayCall(group, kind.slug));
  const isCascading = after.hierarchy.limit_enforcement === "CASCADING";
  const words = isCascading ? sharedWords(kind, was, becomes, ancestors, users) : ownWords(kind, { before, after, ancestors, descendants, users });
  return [{ slug: kind.slug, what: kindText(kind), was: shown(was), becomes: shown(becomes), words }];
}

/** CASCADING: each limit of the path binds, and counts the calls of all below together. */
function sharedWords(kind, was, becomes, ancestors, users) {
  const words = [];
  if (becomes === null) words.push("Nothing is counted at this level any more.");
  else if (users.length) words.push(`${direction(was, becomes)} for this group and, counted together with it, ${names(users)}.`);
  else words.push(`${direction(was, becomes)} for this group.`);
  const upper = ancestors.filter((group) => ownLimit(group, kind) !== null);
  if (upper.length) words.push(`Still bound by ${upper.map((group) => `the ${count(ownLimit(group, kind))} of ${nameOf(group)}`).join(" and ")}.`);
  else if (becomes === null) words.push("No group above limits it either.");
  return words;
}

/** INDEPENDENT: the nearest limit binds; each group is counted alone. */
function ownWords(kind, { before, after, ancestors, descendants, users }) {
  const old = nearest([before, ...ancestors], kind);
  const now = nearest([after, ...ancestors], kind);
  const words = [];
  if (mayCall(after, kind.slug)) {
    if (ownLimit(after, kind) === null) words.push(now ? `Inherits the ${count(now.threshold)} of ${nameOf(now.group)}.` : "No limit any more: no group above sets one.");
    else if (old && old.group.id !== before.id) words.push(`${direction(old.threshold, now.threshold)}: until now it inherits the ${count(old.threshold)} of ${nameOf(old.group)}.`);
    else words.push(`${direction(old?.threshold ?? null, now.threshold)} for this group.`);
  }
  const heirs = users.filter((group) => inherits(group, kind, after.id, descendants));
  if (heirs.length) words.push(`Also for groups below that leave it out, each counted alone: ${names(heirs)}: ${shown(old?.threshold ?? null)} → ${shown(now?.threshold ?? null)}.`);
  const others = users.filter((group) => ownLimit(group, kind) !== null);
  if (others.length) words.push(`Groups below with a limit of their own keep it: ${names(others)}.`);
  return words;
}

/** Whether no group from `group` up to (without) the one that changes sets the limit. */
function inherits(group, kind, changedId, descendants) {
  const byId = new Map(descendants.map((one) => [one.id, one]));
  for (let at = group; at && at.id !== changedId; at = byId.get(at.hierarchy.parent_group_id)) {
    if (ownLimit(at, kind) !== null) return false;
  }
  return true;
}

function direction(was, becomes) {
  if (was === null) return "A new limit";
  return becomes < was ? "Lowers the limit" : "Raises the limit";
}

const shown = (threshold) => (threshold === null ? "none" : count(threshold));

function names(groups) {
  const said = groups.slice(0, MOST_NAMED).map(nameOf).join(", ");
  return groups.length > MOST_NAMED ? `${said} and ${count(groups.length - MOST_NAMED)} more` : said;
}
