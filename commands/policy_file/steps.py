"""The API calls that make changes, in an order in which control allows each. Pure.

See docs/reference/policy-files.md#the-order-of-changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from commands.policy_file.cascade import Transition, intermediate_models, intermediate_spend
from commands.policy_file.group_keys.values import GroupKey, settings_to_wire
from commands.policy_file.planning import Action, Change, Plan, entries
from commands.policy_file.reading import ENDPOINTS, GROUPS, PRICES, SECRETS, WEBHOOKS
from commands.policy_file.values import Group, Kind, OwnedResource, Workspace
from policy.billing import EVENT_TYPE
from policy.endpoints import UNRESTRICTED
from policy.limits.groups import Enforcement
from policy.limits.limit import SlugLimits
from policy.price_wire import price_to_wire
from policy.prices import date_text
from policy.snapshot import models_entry_to_wire
from policy.spend.limits import SpendLimit, spend_limit_to_wire

MAX_WEBHOOKS = 20
"""The bound of a workspace, by control's rules: deletions come first if the new ones would be more meanwhile."""
_FIELDS = {"secret": "secret_id", "model": "model_id"}


@dataclass(frozen=True, slots=True)
class IdOf:
    """A resource's id in a step's path or body, which an earlier step may have created."""

    kind: Kind
    key: str


@dataclass(frozen=True, slots=True)
class ValueOf:
    """A secret's value in a step's body."""

    name: str


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the management API. `path`: its parts, which may hold an `IdOf`."""

    method: str
    path: tuple[str | IdOf, ...]
    kind: Kind
    key: str
    does: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, str] = field(default_factory=dict)


def steps_of(plan: Plan, workspace: Workspace) -> tuple[Step, ...]:
    """The calls that carry out a plan without refusals."""
    if plan.refusals:
        raise ValueError("a plan with refusals has no steps")
    changes = {kind: [change for change in plan.changes if change.kind is kind] for kind in Kind}
    lasting = {kind: [change for change in some if change.after is not None] for kind, some in changes.items()}
    deletions = {kind: [_deletion(change) for change in some if change.after is None] for kind, some in changes.items()}
    webhooks = [step for change in lasting[Kind.WEBHOOK] for step in _webhook(change, plan.owner)]
    created = sum(change.action is Action.CREATE for change in lasting[Kind.WEBHOOK])
    is_full = len(workspace.webhooks) + created > MAX_WEBHOOKS
    return (
        *(_secret(change, plan.owner) for change in lasting[Kind.SECRET]),
        *(_endpoint(change, plan.owner) for change in lasting[Kind.ENDPOINT]),
        *(_price(change, plan.owner) for change in lasting[Kind.PRICE]),
        # Before the limits: a group that goes must not hold up those of its ancestors. Children first.
        *reversed(deletions[Kind.GROUP]),
        *_prepared_keys(lasting[Kind.KEY]),
        *_groups(lasting[Kind.GROUP], changes[Kind.GROUP], workspace.groups, plan.owner),
        *map(_key, lasting[Kind.KEY]),
        *((*deletions[Kind.WEBHOOK], *webhooks) if is_full else (*webhooks, *deletions[Kind.WEBHOOK])),
        *deletions[Kind.PRICE],
        *deletions[Kind.ENDPOINT],
        *deletions[Kind.SECRET],
    )


def audit_path(change: Change) -> str:
    """The path of a resource that exists, as the audit trail names it."""
    assert change.before is not None
    if change.kind is Kind.PRICE:
        price = change.before.value.price
        return f"prices/{price.slug}/{date_text(price.valid_from_ms)}"
    return f"{change.kind}s/{change.before.id}"


def _deletion(change: Change) -> Step:
    collection = {Kind.ENDPOINT: ENDPOINTS, Kind.GROUP: GROUPS, Kind.WEBHOOK: WEBHOOKS, Kind.SECRET: SECRETS}
    assert change.before is not None
    if change.kind is Kind.PRICE:
        price = change.before.value.price
        query = {"slug": price.slug, "valid_from": date_text(price.valid_from_ms)}
        return Step("DELETE", (PRICES,), change.kind, change.key, "delete", None, query)
    last = quote(change.key, safe="") if change.kind is Kind.SECRET else change.before.id
    return Step("DELETE", (collection[change.kind], last), change.kind, change.key, "delete")


def _key(change: Change) -> Step:
    """The call for a key, after those for groups: its slugs are its group's. A key has no owner of its own."""
    goal: GroupKey = change.after
    collection = (GROUPS, IdOf(Kind.GROUP, goal.group), "api_keys")
    if change.before is None:
        settings = {name: value for name, value in goal.settings.items() if name != "disabled"}
        return Step(
            "POST", collection, Kind.KEY, change.key, "create", {"name": goal.name, **settings_to_wire(settings)}
        )
    was = change.before.value.settings
    body = settings_to_wire({name: value for name, value in goal.settings.items() if value != was.get(name)})
    return Step("PATCH", (*collection, change.before.id), Kind.KEY, change.key, change.action.value, body)


def _prepared_keys(changes: Sequence[Change]) -> Iterator[Step]:
    """Remove spend limits in a currency that the tree may leave: all of a tree have one."""
    for change in changes:
        if change.before is None:
            continue
        old, new = (
            {limit.currency for limit in key.settings.get("spend_limits", ())}
            for key in (change.before.value, change.after)
        )
        if old and new and old != new:
            path = (GROUPS, IdOf(Kind.GROUP, change.after.group), "api_keys", change.before.id)
            yield Step("PATCH", path, Kind.KEY, change.key, "prepare", {"spend_limits": []})


def _price(change: Change, owner: str) -> Step:
    price = change.after.price
    body = {"slug": price.slug, **price_to_wire(price), "managed_by": owner}
    return Step("PUT", (PRICES,), Kind.PRICE, change.key, change.action.value, body)


def _secret(change: Change, owner: str) -> Step:
    does = {Action.CREATE: "create", Action.UPDATE: "rotate", Action.ADOPT: "adopt"}[change.action]
    body = {"name": change.key, "value": ValueOf(change.key), "managed_by": owner}
    return Step("POST", (SECRETS,), Kind.SECRET, change.key, does, body)


def _endpoint(change: Change, owner: str) -> Step:
    target: dict[str, Any] = {_FIELDS.get(name, name): value for name, value in change.after.target.items()}
    if "secret_id" in target:
        target["secret_id"] = IdOf(Kind.SECRET, target["secret_id"])
    body = {"targets": [target], "managed_by": owner}
    if change.before is None:
        region = change.after.region
        if region not in (None, UNRESTRICTED):  # control of older versions knows no region
            body["region"] = region
        return Step("POST", (ENDPOINTS,), Kind.ENDPOINT, change.key, "create", {"slug": change.key, **body})
    return Step("PATCH", (ENDPOINTS, change.before.id), Kind.ENDPOINT, change.key, change.action.value, body)


def _webhook(change: Change, owner: str) -> Iterator[Step]:
    """A webhook is created enabled, so one that is not takes two calls."""
    key = change.key
    goal = change.after
    body: dict[str, Any] = {"managed_by": owner}
    if change.before is None:
        details = {"include_details": True} if goal.include_details else {}
        described = {"url": goal.url, "description": goal.description, **details, **body}
        if goal.event_types != (EVENT_TYPE,):
            described["event_types"] = list(goal.event_types)
        if goal.group is not None:
            described["group_id"] = IdOf(Kind.GROUP, goal.group)
        yield Step("POST", (WEBHOOKS,), Kind.WEBHOOK, key, "create", described)
        if not goal.enabled:
            yield Step(
                "PATCH", (WEBHOOKS, IdOf(Kind.WEBHOOK, key)), Kind.WEBHOOK, key, "disable", body | {"enabled": False}
            )
    else:
        if change.action is Action.UPDATE:
            body["enabled"] = goal.enabled
            if change.before.value.include_details != goal.include_details:
                body["include_details"] = goal.include_details
            if goal.event_types != change.before.value.event_types:
                body["event_types"] = list(goal.event_types)
        yield Step("PATCH", (WEBHOOKS, change.before.id), Kind.WEBHOOK, key, change.action.value, body)


def _groups(
    changes: Sequence[Change], all_changes: Sequence[Change], existing: Mapping[str, OwnedResource[Group]], owner: str
) -> Iterator[Step]:
    """Tighten from the leaves up, then create and change from the root down."""
    deleted = {change.key for change in all_changes if change.after is None}
    between = _between(changes, {key: group.value for key, group in existing.items() if key not in deleted})
    by_key = {change.key: change for change in changes}
    for key in reversed(tuple(existing)):
        if key in by_key and (members := _limit_members(existing[key].value, between[key])):
            yield _tightening(by_key[key], members, owner)
    # Changes come in the file's order, parents first among the file's groups; parents of others exist already.
    order = {key: number for number, key in enumerate(existing)}
    for change in sorted(changes, key=lambda change: (change.before is None, order.get(change.key, 0))):
        step = _final(change, between.get(change.key), owner)
        if step is not None:
            yield step


def _between(changes: Sequence[Change], existing: Mapping[str, Group]) -> dict[str, Group]:
    """Return the existing groups that change, as they are between the two phases."""
    after = {change.key: change.after for change in changes if change.before is not None}
    models = _intermediate_models(after, existing)
    spend: Mapping[str, tuple[SpendLimit, ...]] = {}
    if any(goal.spend_limits != existing[key].spend_limits for key, goal in after.items()):
        spend = intermediate_spend(existing, {**existing, **after})
    between: dict[str, Group] = {}
    for key in after:
        group = existing[key]
        spend_limits = spend.get(key, group.spend_limits)
        between[key] = replace(group, models=models.get(key, group.models), spend_limits=spend_limits)
    return between


def _limit_members(before: Group, after: Group) -> dict[str, Any]:
    """Return what a PATCH says that changes the limits of one into those of the other."""
    members: dict[str, Any] = {}
    if entries(after.models) != entries(before.models):
        members["models"] = wire_models(after.models)
    if after.spend_limits != before.spend_limits:
        members["spend_limits"] = list(map(spend_limit_to_wire, after.spend_limits))
    return members


def _intermediate_models(
    after: Mapping[str, Group], existing: Mapping[str, Group]
) -> dict[str, tuple[SlugLimits, ...]]:
    """Return limits on the way, in CASCADING trees: elsewhere, and in a tree of one, no other group's rules matter."""
    parents = {group.parent for group in existing.values()}
    transitions = {
        key: Transition(key, group.parent, group.models, after[key].models if key in after else group.models)
        for key, group in existing.items()
        if group.enforcement is Enforcement.CASCADING and (group.parent is not None or key in parents)
    }
    changed = {key for key in after if key in transitions and after[key].models != transitions[key].old}
    if not changed:
        return {}
    return {key: models for key, models in intermediate_models(transitions).items() if key in after}


def _tightening(change: Change, members: Mapping[str, Any], owner: str) -> Step:
    assert change.before is not None
    body = {**members, "managed_by": owner}
    return Step("PATCH", (GROUPS, change.before.id), Kind.GROUP, change.key, "tighten", body)


def _final(change: Change, between: Group | None, owner: str) -> Step | None:
    """None: tightening was all. A change of the name alone sends no limits. `between` None: the group is new."""
    goal: Group = change.after
    if change.before is None or between is None:
        return _creation(goal, owner)
    was: Group = change.before.value
    body: dict[str, Any] = {"managed_by": owner}
    if goal.name != was.name:
        body["metadata"] = {"name": goal.name}
    if goal.alert_percents != was.alert_percents:
        body["alert_percents"] = list(goal.alert_percents)
    body |= _limit_members(between, goal)
    if len(body) == 1 and _limit_members(was, between):
        return None
    return Step("PATCH", (GROUPS, change.before.id), Kind.GROUP, change.key, change.action.value, body)


def _creation(goal: Group, owner: str) -> Step:
    assert goal.enforcement is not None
    hierarchy: dict[str, Any] = {"limit_enforcement": goal.enforcement.value}
    if goal.parent is not None:
        hierarchy["parent_group_id"] = IdOf(Kind.GROUP, goal.parent)
    key = goal.external_entity_id
    body: dict[str, Any] = {
        "metadata": {"external_entity_id": key, "name": goal.name},
        "models": wire_models(goal.models),
        "hierarchy": hierarchy,
        "managed_by": owner,
    }
    if goal.alert_percents:
        body["alert_percents"] = list(goal.alert_percents)
    if goal.spend_limits:
        body["spend_limits"] = list(map(spend_limit_to_wire, goal.spend_limits))
    return Step("POST", (GROUPS,), Kind.GROUP, key, "create", body)


def wire_models(models: Sequence[SlugLimits]) -> list[dict[str, Any]]:
    """The `models` of a group, as the API takes them."""
    return [models_entry_to_wire(entry) for entry in models]
