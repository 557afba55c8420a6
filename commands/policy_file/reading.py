"""Reads what a workspace has, over the management API: its lists, and one comparison per secret with a known value."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from typing import Any, TypeVar

from commands.connection import Client
from commands.errors import AwayError, RefusedError
from commands.lists import PAGE_ITEMS, Told, all_items
from commands.policy_file.document import numbered, slug_limits, slug_price, spend_limits
from commands.policy_file.group_keys.values import GroupKey, settings_from_wire
from commands.policy_file.trees import parents_first
from commands.policy_file.values import (
    Endpoint,
    Group,
    GroupLosses,
    LastChange,
    OwnedResource,
    Secret,
    SlugPrice,
    Webhook,
    Workspace,
)
from policy.billing import EVENT_TYPE
from policy.credentials import KeyKind
from policy.endpoints import UNRESTRICTED, own_provider
from policy.limits.groups import Enforcement
from policy.prices import amount_text

V = TypeVar("V", Secret, Endpoint, Group, Webhook, SlugPrice)

ENDPOINTS = "/v1/gateway/endpoints"
GROUPS = "/v1/gateway/groups"
WEBHOOKS = "/v1/gateway/webhooks"
PRICES = "/v1/gateway/prices"
SECRETS = "/v1/secrets"
MODELS = "/v1/models"
TABLES = "/console/tables.json"
AUDIT = "/v1/audit_events"
KEYS = "/v1/gateway/api_keys"
_FEW_GROUPS = 20
"""Groups whose keys are asked for one by one. Those of more come from the list of all keys."""
_MOST_LOOKED_AT = 100
"""The most groups whose keys and balances are read: each takes two calls."""
_AUDIT_PAGES = 5
"""The most pages of the audit trail that are read for the last changes."""


async def read_workspace(client: Client, values: Mapping[str, str], report: Told | None = None) -> Workspace:
    """All that policy files describe. `values`: the value of each secret that is to be compared, by its name.

    `report`: gets the number of groups that have been read.
    """
    secrets = await all_items(client, SECRETS)
    names = {secret["id"]: secret["name"] for secret in secrets}
    endpoints = [_owned(item, _endpoint(item, names)) for item in await all_items(client, ENDPOINTS)]
    groups = await all_items(client, GROUPS, report, effective_models="false")
    external = {item["id"]: item["metadata"]["external_entity_id"] for item in groups}
    webhooks = await all_items(client, WEBHOOKS)
    numbers = numbered([_webhook(item, external) for item in webhooks])
    prices = [_owned(item, slug_price(item)) for item in await all_items(client, PRICES)]
    return Workspace(
        {item["name"]: _owned(item, Secret(item["name"])) for item in secrets},
        {endpoint.value.slug: endpoint for endpoint in endpoints},
        _groups(groups, external),
        tuple(_owned(item, webhook) for item, webhook in zip(webhooks, numbers, strict=True)),
        {price.value.key: price for price in prices},
        {model["id"]: model["name"] for model in await all_items(client, MODELS)},
        await _compared(client, values.items() & {(name, values.get(name)) for name in names.values()}),
    )


async def _compared(client: Client, values: Any) -> dict[str, bool]:
    equal: dict[str, bool] = {}
    for name, value in sorted(values):
        answer = await client.call("POST", f"{SECRETS}/compare", {"name": name, "value": value})
        if answer["exists"]:
            equal[name] = answer["equal"]
    return equal


async def read_all_keys(client: Client) -> dict[str, list[GroupKey]]:
    """The keys of all groups; none where control is of a version without such a list, and without settings."""
    try:
        return await read_keys(client)
    except RefusedError as error:
        if error.status != 404:
            raise
        return {}


async def read_keys(client: Client, groups: Collection[str] | None = None) -> dict[str, list[GroupKey]]:
    """The keys of groups, by their external ids. None: of all groups."""
    entities = list(groups) if groups is not None and len(groups) <= _FEW_GROUPS else [None]
    keys: dict[str, list[GroupKey]] = {}
    for entity in entities:
        for item in await all_items(client, KEYS, type=KeyKind.FEDERATED.value, external_entity_id=entity):
            group = item["group"]["external_entity_id"]
            key = GroupKey(group, item["name"], item["prefix"], settings_from_wire(item), item.get("state", "ACTIVE"))
            keys.setdefault(group, []).append(key)
    return keys


async def read_provider_names(client: Client) -> dict[str, str]:
    """The names of providers that this installation knows, with its own aliases, and the provider of each."""
    tables = await client.call("GET", TABLES)
    # Control of older versions does not show what an alias of its own stands for.
    return {one["name"]: one.get("provider") or own_provider(one["name"]) for one in tables["providers"]}


async def read_last_changes(client: Client, resources: Mapping[str, OwnedResource[Any]]) -> dict[str, LastChange]:
    """Return who changed these last, and when, as far as the audit trail tells. `resources`: by their paths there."""
    changes = {path: LastChange(resource.updated_at, None) for path, resource in resources.items()}
    since = min((resource.applied_at for resource in resources.values() if resource.applied_at), default=None)
    missing = set(resources)
    query: dict[str, Any] = {"start_time": since, "limit": PAGE_ITEMS}
    for _ in range(_AUDIT_PAGES):
        if since is None or not missing:
            break
        try:
            page = await client.call("GET", AUDIT, **query)
        except (RefusedError, AwayError):  # the plan is as good without
            break
        for entry in page["items"]:  # the newest first
            if entry["resource"] in missing:
                missing.remove(entry["resource"])
                changes[entry["resource"]] = LastChange(entry["timestamp"], entry["actor"])
        query = {"cursor": page["pagination"]["cursor"]}
        if query["cursor"] is None:
            break
    return changes


async def read_losses(client: Client, ids: Iterable[str]) -> dict[str, GroupLosses]:
    """The losses with each of the first of these groups, without the groups below it."""
    losses: dict[str, GroupLosses] = {}
    for id in islice(ids, _MOST_LOOKED_AT):
        with suppress(RefusedError):  # it is gone meanwhile
            keys = len(await all_items(client, f"{GROUPS}/{id}/api_keys"))
            losses[id] = GroupLosses(keys, await _credit_left(client, id))
    return losses


async def _credit_left(client: Client, group_id: str) -> str | None:
    """The credit that is left in the group's own balance. None: it has none, or Redis is away and nobody can tell."""
    try:
        balance = await client.call("GET", f"{GROUPS}/{group_id}/balance")
    except (RefusedError, AwayError):
        return None
    rest = Decimal(balance["credited"]) - Decimal(balance["spent"])
    return f"{amount_text(rest)} {balance['currency']}" if rest > 0 else None


def _owned(item: Mapping[str, Any], value: V) -> OwnedResource[V]:
    owner = item.get("managed_by") or {"name": None, "drifted": False}
    times = (owner.get("applied_at"), item.get("updated_at"))
    return OwnedResource(item.get("id", ""), value, owner["name"], owner["drifted"], *times)


def _endpoint(item: Mapping[str, Any], secrets: Mapping[str, str]) -> Endpoint:
    """A secret that was deleted between the two lists keeps its id: then the target differs from any in a file."""
    target = {name: value for name, value in item["targets"][0].items() if value is not None}
    if "secret_id" in target:
        id = target.pop("secret_id")
        target["secret"] = secrets.get(id, id)
    if "model_id" in target:
        target["model"] = target.pop("model_id")
    return Endpoint(item["slug"], target, item.get("region", UNRESTRICTED))  # control of older versions shows none


def _groups(items: Sequence[Mapping[str, Any]], external: Mapping[str, str]) -> dict[str, OwnedResource[Group]]:
    """Read groups by external id, parents first: lists are ordered by the clocks of several control processes."""
    groups = {external[item["id"]]: _owned(item, _group(item, external)) for item in items}
    ordered = parents_first([group.value for group in groups.values()])
    return {group.external_entity_id: groups[group.external_entity_id] for group in ordered}


def _group(item: Mapping[str, Any], external: Mapping[str, str]) -> Group:
    metadata = item["metadata"]
    hierarchy = item["hierarchy"]
    parent = hierarchy["parent_group_id"]
    return Group(
        metadata["external_entity_id"],
        metadata["name"],
        Enforcement(hierarchy["limit_enforcement"]),
        None if parent is None else external.get(parent, parent),
        tuple(slug_limits(entry) for entry in item["models"]),
        tuple(item.get("alert_percents", ())),  # control of older versions shows none
        spend_limits(item.get("spend_limits", ())),
    )


def _webhook(item: Mapping[str, Any], external: Mapping[str, str]) -> Webhook:
    """A group that was deleted keeps its id: then the webhook differs from any in a file."""
    group = item.get("group_id")
    return Webhook(
        item["url"],
        item["description"],
        item["enabled"],
        item.get("include_details", False),
        event_types=tuple(sorted(item.get("event_types", (EVENT_TYPE,)))),
        group=None if group is None else external.get(group, group),
    )
