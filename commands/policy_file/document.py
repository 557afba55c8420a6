"""Reads the text of a policy file into its values. Every problem names its line and field.

See docs/reference/policy-files.md#the-file.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from commands.output import cell_text
from commands.policy_file.errors import PolicyFileError
from commands.policy_file.group_keys.in_file import key_problems, keys_of
from commands.policy_file.schema_check import Problem, problems_of
from commands.policy_file.trees import parents_first, path_up
from commands.policy_file.values import Endpoint, Group, PolicyFile, Secret, SlugPrice, Webhook
from commands.policy_file.yaml_text import Parsed, Place, parse_yaml
from policy.billing import EVENT_TYPE
from policy.limits.groups import MAX_DEPTH, Enforcement
from policy.limits.kinds import USAGE_UNITS
from policy.limits.limit import IllegalLimitsError, Limit, SlugLimits, check_slug_limits, limit_of
from policy.price_wire import price_from_wire
from policy.spend.limits import (
    IllegalSpendLimitsError,
    SpendEnforcement,
    SpendLimit,
    check_spend_limits,
    spend_limit_from_wire,
)

_Placed = tuple[Place, Group]


class IllegalDocumentError(PolicyFileError):
    """The value breaks rules of policy files. `placed`: which, and where."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__([_message(problem) for problem in problems])
        self.placed = tuple(problems)


def read_document(text: str) -> PolicyFile:
    """The policy file, or PolicyFileError with its problems in the order of their lines."""
    parsed = parse_yaml(text)
    try:
        return read_value(parsed.value)
    except IllegalDocumentError as error:
        raise _error(parsed, error.placed) from None


def read_value(document: Any) -> PolicyFile:
    """The policy file with this value. Raises IllegalDocumentError."""
    if problems := problems_of(document):
        raise IllegalDocumentError(problems)
    groups = list(_groups(document.get("groups", []), ("groups",), None))
    problems = [*_repeated(document), *_group_problems(groups), *_price_problems(document)]
    if problems := [*problems, *key_problems(document.get("groups", ()))]:
        raise IllegalDocumentError(problems)
    return PolicyFile(
        document["name"],
        tuple(Secret(item["name"], item["value_from"]["env"]) for item in document.get("secrets", [])),
        tuple(Endpoint(item["slug"], item["target"], item.get("region")) for item in document.get("endpoints", [])),
        parents_first([group for _place, group in groups]),
        numbered([_webhook(item) for item in document.get("webhooks", [])]),
        tuple(slug_price(item) for item in document.get("prices", [])),
        tuple(keys_of(document.get("groups", ()))),
    )


def _error(parsed: Parsed, problems: Sequence[Problem]) -> PolicyFileError:
    at = parsed.lines(problem.place for problem in problems)
    lines = sorted({(at[problem.place], _message(problem)) for problem in problems})
    return PolicyFileError([f"line {line}: {message}" for line, message in lines])


def _message(problem: Problem) -> str:
    return cell_text(f"{_path(problem.place)}: {problem.message}")


def _path(place: Place) -> str:
    return ".".join(str(part) for part in place) or "the file"


def _groups(items: list[dict[str, Any]], place: Place, above: str | None) -> Iterator[_Placed]:
    for index, item in enumerate(items):
        mode = item.get("limit_enforcement")
        group = Group(
            item["external_entity_id"],
            item.get("name"),
            Enforcement(mode) if mode else None,
            item.get("parent") if above is None else above,
            tuple(slug_limits(entry) for entry in item.get("models", [])),
            tuple(sorted(item.get("alert_percents", ()))),
            spend_limits(item.get("spend_limits", ())),
        )
        yield (*place, index), group
        yield from _groups(item.get("groups", []), (*place, index, "groups"), group.external_entity_id)


def slug_limits(entry: dict[str, Any]) -> SlugLimits:
    """An entry of `models`, as files and the API write it."""
    rates, usages = (tuple(map(_limit, entry.get(name, ()))) for name in ("rate_limits", "usage_limits"))
    return SlugLimits(entry["slug"], rates, usages)


def spend_limits(items: Sequence[dict[str, Any]]) -> tuple[SpendLimit, ...]:
    """The spend limits of a group, as files and the API write them, DAY before MONTH."""
    soft = {"enforcement": SpendEnforcement.SOFT.value}
    limits = [spend_limit_from_wire({**soft, **item, "amount": str(item["amount"])}) for item in items]
    return tuple(sorted(limits, key=lambda limit: USAGE_UNITS.index(limit.unit)))


def _limit(item: dict[str, Any]) -> Limit:
    return limit_of(item["type"], item["unit"], item["threshold"])


def _webhook(item: dict[str, Any]) -> Webhook:
    return Webhook(
        item["url"],
        item.get("description"),
        item.get("enabled", True),
        item.get("include_details", False),
        event_types=tuple(sorted(item.get("event_types", (EVENT_TYPE,)))),
        group=item.get("group"),
    )


def slug_price(item: dict[str, Any]) -> SlugPrice:
    """A price, as files and the API write it."""
    return SlugPrice(price_from_wire(item["slug"], item))


def numbered(webhooks: list[Webhook]) -> tuple[Webhook, ...]:
    """The same webhooks; those with the same URL, description and group numbered from 1."""
    counts: Counter[Any] = Counter()
    result: list[Webhook] = []
    for webhook in webhooks:
        counts[webhook.identity] += 1
        result.append(replace(webhook, number=counts[webhook.identity]))
    return tuple(result)


def _repeated(document: dict[str, Any]) -> Iterator[Problem]:
    for kind, identity in (("secrets", "name"), ("endpoints", "slug")):
        names: set[str] = set()
        for index, item in enumerate(document.get(kind, [])):
            if item[identity] in names:
                yield Problem((kind, index, identity), f"{item[identity]} is given twice")
            names.add(item[identity])


def _price_problems(document: dict[str, Any]) -> Iterator[Problem]:
    keys: set[str] = set()
    for index, item in enumerate(document.get("prices", [])):
        try:
            key = slug_price(item).key
        except ValueError as error:
            yield Problem(("prices", index, "valid_from"), str(error))
            continue
        if key in keys:
            yield Problem(("prices", index, "valid_from"), f"the price of {key} is given twice")
        keys.add(key)


def _group_problems(groups: list[_Placed]) -> Iterator[Problem]:
    before: dict[str, Group] = {}
    for place, group in groups:
        if group.external_entity_id in before:
            yield Problem((*place, "external_entity_id"), f"{group.external_entity_id} is given twice")
        before[group.external_entity_id] = group
        yield from _model_problems(place, group)
        try:
            check_spend_limits(group.spend_limits)
        except IllegalSpendLimitsError as error:
            yield Problem((*place, "spend_limits"), str(error))
    for place, group in groups:
        if len(path_up(group, before)) > MAX_DEPTH:
            yield Problem(place, f"a group tree has at most {MAX_DEPTH} levels, and no group is below itself")


def _model_problems(place: Place, group: Group) -> Iterator[Problem]:
    slugs: set[str] = set()
    for index, entry in enumerate(group.models):
        if entry.slug in slugs:
            yield Problem((*place, "models", index, "slug"), f"{entry.slug} is named twice in models")
        slugs.add(entry.slug)
        try:
            check_slug_limits(entry)
        except IllegalLimitsError as error:
            yield Problem((*place, "models", index), str(error))
