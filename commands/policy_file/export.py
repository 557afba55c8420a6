"""Makes a policy file of a workspace. Secrets by reference: the API shows no value. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from commands.policy_file.errors import PolicyFileError
from commands.policy_file.group_keys.matching import names_alone
from commands.policy_file.group_keys.values import GroupKey, restrictions, settings_to_wire
from commands.policy_file.schema import VERSION
from commands.policy_file.steps import wire_models
from commands.policy_file.values import Endpoint, Group, OwnedResource, Webhook, Workspace
from policy.billing import EVENT_TYPE
from policy.endpoints import UNRESTRICTED
from policy.limits.groups import Enforcement
from policy.price_wire import price_from_wire, price_to_wire
from policy.prices import Price
from policy.spend.limits import SpendEnforcement, SpendLimit, spend_limit_to_wire

DEFAULT_NAME = "policy"
_NEEDED = ("slug", "valid_from", "currency", "input_per_million", "output_per_million")
"""The members of a price that have no default."""


def owner_to_export(workspace: Workspace) -> str:
    """The only owner in the workspace, or DEFAULT_NAME without one. PolicyFileError if there are several."""
    owners = sorted({item.owner for item in _everything(workspace) if item.owner is not None})
    if len(owners) > 1:
        raise PolicyFileError([f"several policy files own resources: {', '.join(owners)}. Say which one with --name"])
    return owners[0] if owners else DEFAULT_NAME


def export_value(workspace: Workspace, name: str) -> tuple[dict[str, Any], int]:
    """Return the content of the file that `name` would own, and how many resources of other owners it leaves out."""
    owners = (None, name)
    secrets = [key for key, item in workspace.secrets.items() if item.owner in owners]
    variables = _variables(secrets)
    document: dict[str, Any] = {
        "version": VERSION,
        "name": name,
        "secrets": [{"name": key, "value_from": {"env": variables[key]}} for key in secrets],
        "endpoints": _endpoints(
            [item.value for item in workspace.endpoints.values() if item.owner in owners], workspace.models
        ),
        "groups": _groups([item.value for item in workspace.groups.values() if item.owner in owners], workspace.keys),
        "webhooks": [_webhook(item.value) for item in workspace.webhooks if item.owner in owners],
        "prices": [_price(item.value.price) for item in workspace.prices.values() if item.owner in owners],
    }
    rest = sum(item.owner not in owners for item in _everything(workspace))
    return {key: value for key, value in document.items() if value != []}, rest


def _everything(workspace: Workspace) -> Iterable[OwnedResource[Any]]:
    items: list[OwnedResource[Any]] = [
        *workspace.secrets.values(),
        *workspace.endpoints.values(),
        *workspace.groups.values(),
    ]
    return [*items, *workspace.webhooks, *workspace.prices.values()]


def _variables(names: Iterable[str]) -> dict[str, str]:
    """An environment variable for each secret: its name in capitals, and a number where two would be the same."""
    used_names: set[str] = set()
    variables: dict[str, str] = {}
    for name in names:
        base = "SECRET_" + re.sub("[^A-Z0-9]", "_", name.upper())
        candidate = base
        number = 1
        while candidate in used_names:
            number += 1
            candidate = f"{base}_{number}"
        used_names.add(candidate)
        variables[name] = candidate
    return variables


def _endpoints(endpoints: Iterable[Endpoint], models: Mapping[str, str]) -> list[dict[str, Any]]:
    """Write endpoints with the names of models that are unambiguous instead of their ids."""
    counts = Counter(models.values())
    items: list[dict[str, Any]] = []
    for endpoint in endpoints:
        target = dict(endpoint.target)
        name = models.get(target.get("model", ""))
        if name is not None and counts[name] == 1 and name not in models:
            target["model"] = name
        region = {} if endpoint.region in (None, UNRESTRICTED) else {"region": endpoint.region}
        items.append({"slug": endpoint.slug, **region, "target": target})
    return items


def _groups(groups: Sequence[Group], keys: Mapping[str, Sequence[GroupKey]]) -> list[dict[str, Any]]:
    """Each group in its parent, parents before children. One whose parent belongs to another file names it."""
    items = {group.external_entity_id: _group(group) for group in groups}
    for id, item in items.items():
        if of_group := _keys(keys.get(id, ())):
            item["keys"] = of_group
    roots: list[dict[str, Any]] = []
    for group in groups:
        item = items[group.external_entity_id]
        if group.parent is None:
            roots.append(item)
        elif group.parent in items:
            items[group.parent].setdefault("groups", []).append(item)
        else:
            item["parent"] = group.parent
            roots.append(item)
    return roots


def _group(group: Group) -> dict[str, Any]:
    item: dict[str, Any] = {"external_entity_id": group.external_entity_id}
    if group.name is not None:
        item["name"] = group.name
    if group.parent is None and group.enforcement is Enforcement.CASCADING:
        item["limit_enforcement"] = group.enforcement.value
    if group.alert_percents:
        item["alert_percents"] = list(group.alert_percents)
    if group.spend_limits:
        item["spend_limits"] = list(map(_spend_limit, group.spend_limits))
    item["models"] = [{name: value for name, value in entry.items() if value} for entry in wire_models(group.models)]
    return item


def _keys(keys: Sequence[GroupKey]) -> list[dict[str, Any]]:
    """The keys in use on which something is set, by their names where these are unambiguous."""
    items: list[dict[str, Any]] = []
    for key in keys:
        settings = restrictions(key.settings)
        if key.is_in_use and settings:
            name = {"name": key.name} if names_alone(key, keys) else {"prefix": key.prefix}
            items.append({**name, **settings_to_wire(settings)})
    return items


def _spend_limit(limit: SpendLimit) -> dict[str, Any]:
    """The limit without a mode that is the default."""
    item = spend_limit_to_wire(limit)
    if limit.enforcement is SpendEnforcement.SOFT:
        del item["enforcement"]
    return item


def _webhook(webhook: Webhook) -> dict[str, Any]:
    item: dict[str, Any] = {"url": webhook.url}
    if webhook.description is not None:
        item["description"] = webhook.description
    if webhook.event_types != (EVENT_TYPE,):
        item["event_types"] = list(webhook.event_types)
    if webhook.group is not None:
        item["group"] = webhook.group
    item |= {} if webhook.enabled else {"enabled": False}
    return item | ({"include_details": True} if webhook.include_details else {})


def _price(price: Price) -> dict[str, Any]:
    """The price without members that have their default."""
    item = {"slug": price.slug, **price_to_wire(price)}
    for name in tuple(item):
        shorter = {key: value for key, value in item.items() if key != name}
        if name not in _NEEDED and price_from_wire(price.slug, shorter) == price:
            item = shorter
    return item
