"""A plan as people read it, and as JSON for scripts. It shows no value of a secret. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commands.output import cell_text
from commands.policy_file.group_keys.values import ANY, NEVER, GroupKey, settings_to_wire
from commands.policy_file.planning import Action, Change, Plan
from commands.policy_file.steps import IdOf, Step
from commands.policy_file.values import Endpoint, Group, GroupLosses, Kind, LastChange, SlugPrice, Webhook
from policy.endpoints import UNRESTRICTED
from policy.limits.limit import SlugLimits
from policy.price_wire import price_to_wire
from policy.prices import amount_text

_SIGNS = {Action.CREATE: "+", Action.UPDATE: "~", Action.ADOPT: "=", Action.DELETE: "-"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that changes. None: it is not there."""

    field: str
    before: Any
    after: Any


def plan_text(plan: Plan, steps: Sequence[Step]) -> str:
    """Lines about drift, then a line per resource and per field that changes, then notes, refusals and a summary."""
    lines = list(_drift_lines(plan))
    for change in plan.changes:
        owner = " (now owned by this file)" if change.before is not None and change.before.owner is None else ""
        lines.append(f"{_SIGNS[change.action]} {change.kind} {cell_text(change.key)}{owner}")
        lines += [f"    {_difference_text(difference)}" for difference in differences(change)]
        if change.key in plan.losses and change.kind is Kind.GROUP:
            lines += [f"    {text}" for text in _loss_texts(plan.losses[change.key])]
    lines += [f"note: {cell_text(note)}" for note in plan.notes]
    lines += [f"refused: {cell_text(refusal)}" for refusal in plan.refusals]
    return "\n".join([*lines, _summary(plan, steps)])


def _drift_lines(plan: Plan) -> Iterator[str]:
    """Yield what something else changed, by whom and when, and what the file says instead."""
    if plan.drifts:
        yield "Changed by something else since the last apply, and otherwise in the file:"
    for drift in plan.drifts:
        last = plan.last_changes.get((drift.kind, drift.key), LastChange(None, None))
        actor = "" if last.actor is None else f", by {cell_text(last.actor)}"
        at = "" if last.at is None else f", at {cell_text(last.at)}"
        yield f"! {drift.kind} {cell_text(drift.key)}{actor}{at}"
        if drift not in plan.changes:  # else its differences come below
            yield from (f"    {_difference_text(difference)}" for difference in differences(drift))


def _loss_texts(losses: GroupLosses) -> Iterator[str]:
    if losses.keys:
        yield f"with {losses.keys} {'key' if losses.keys == 1 else 'keys'}"
    if losses.credit is not None:
        yield f"with {losses.credit} of credit"


def plan_value(plan: Plan, steps: Sequence[Step]) -> dict[str, Any]:
    """The same for `--json`."""
    return {
        "name": plan.owner,
        "drifted": [_drift_value(plan, drift) for drift in plan.drifts],
        "changes": [_change_value(change) | _losses_value(plan, change) for change in plan.changes],
        "notes": list(plan.notes),
        "refused": list(plan.refusals),
        "unchanged": plan.unchanged,
        "steps": [
            {"does": step.does, "kind": step.kind.value, "key": step.key, "method": step.method, "path": _path(step)}
            for step in steps
        ],
    }


def _change_value(change: Change) -> dict[str, Any]:
    return {
        "action": change.action.value,
        "kind": change.kind.value,
        "key": change.key,
        "id": None if change.before is None else change.before.id,
        "differences": [{"field": one.field, "before": one.before, "after": one.after} for one in differences(change)],
    }


def _drift_value(plan: Plan, drift: Change) -> dict[str, Any]:
    last = plan.last_changes.get((drift.kind, drift.key), LastChange(None, None))
    return _change_value(drift) | {"changed_at": last.at, "changed_by": last.actor}


def _losses_value(plan: Plan, change: Change) -> dict[str, Any]:
    losses = plan.losses.get(change.key) if change.kind is Kind.GROUP else None
    return {} if losses is None else {"api_keys": losses.keys, "credit": losses.credit}


def _path(step: Step) -> str:
    return "/".join("{id}" if isinstance(part, IdOf) else part for part in step.path)


def _summary(plan: Plan, steps: Sequence[Step]) -> str:
    if plan.refusals:
        return f"Refused: {len(plan.refusals)} of what {plan.owner} says. Nothing is changed."
    if not plan.changes:
        return f"Nothing to do: all {plan.unchanged} resources of the file are as it says."
    counts = {action: sum(change.action is action for change in plan.changes) for action in Action}
    text = ", ".join(f"{count} to {action}" for action, count in counts.items() if count)
    return f"{text}{_lost_keys(plan)}; {plan.unchanged} unchanged. {len(steps)} calls."


def _lost_keys(plan: Plan) -> str:
    keys = sum(loss.keys for loss in plan.losses.values())
    least = "at least " if len(plan.losses) < len(plan.deleted_groups) else ""
    return f", with {least}{keys} {'key' if keys == 1 else 'keys'}" if keys or least else ""


def differences(change: Change) -> list[Difference]:
    """The fields that change. Nothing for a deletion, and for a secret, whose value nobody sees."""
    if change.after is None or change.action is Action.ADOPT:
        return []
    before = {} if change.before is None else dict(_fields(change.before.value))
    after = dict(_fields(change.after))
    names = [*after, *(name for name in before if name not in after)]
    return [
        Difference(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    ]


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    match value:
        case Endpoint(target=target, region=region):
            if region != UNRESTRICTED:
                yield "region", region
            yield from _flat(target)
        case Group():
            yield from _group_fields(value)
        case GroupKey():
            yield from _key_fields(value)
        case Webhook():
            yield "enabled", value.enabled
            yield "include_details", value.include_details
            yield "event_types", ", ".join(value.event_types)
        case SlugPrice(price=price):
            yield from _flat({name: member for name, member in price_to_wire(price).items() if member is not None})


def _key_fields(key: GroupKey) -> Iterator[tuple[str, Any]]:
    wire = settings_to_wire(key.settings)
    for name, value in wire.items():
        if name in ("allowed_ips", "slugs"):
            yield name, ANY if value is None else ", ".join(value)
        elif name == "rate_limits":
            yield name, ", ".join(f"{limit['threshold']} {limit['type']} per {limit['unit']}" for limit in value)
        elif name == "spend_limits":
            texts = (f"{one['amount']} {one['currency']} {one['enforcement']} per {one['unit']}" for one in value)
            yield name, ", ".join(texts)
        else:
            yield name, NEVER if value is None else value


def _flat(target: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in target.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", member) for inner, member in _flat(value))
        else:
            yield name, value


def _group_fields(group: Group) -> Iterator[tuple[str, Any]]:
    yield "name", group.name
    yield "parent", group.parent
    yield "limit_enforcement", None if group.enforcement is None else group.enforcement.value
    yield "alert_percents", ", ".join(map(str, group.alert_percents)) or None
    for limit in group.spend_limits:
        yield f"spend per {limit.unit}", f"{amount_text(limit.amount)} {limit.currency} {limit.enforcement}"
    for entry in group.models:
        yield from _entry_fields(entry)


def _entry_fields(entry: SlugLimits) -> Iterator[tuple[str, Any]]:
    yield f"{entry.slug} access", True
    for limit in entry.limits:
        yield f"{entry.slug} {limit.type} per {limit.unit}", limit.threshold


def _difference_text(difference: Difference) -> str:
    before = cell_text(difference.before)
    after = cell_text(difference.after)
    return f"{cell_text(difference.field)}: {after if difference.before is None else f'{before} → {after}'}"
