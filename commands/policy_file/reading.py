"""Reads what a workspace has, over the management API: six lists, and one comparison per secret with a known value."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from commands.connection import Client
from commands.lists import Told, all_items
from commands.policy_file.document import numbered, slug_limits, slug_price, spend_limits
from commands.policy_file.trees import parents_first
from commands.policy_file.values import Endpoint, Group, OwnedResource, Secret, SlugPrice, Webhook, Workspace
from policy.billing import EVENT_TYPE
from policy.endpoints import UNRESTRICTED, own_provider
from policy.limits.groups import Enforcement

V = TypeVar("V", Secret, Endpoint, Group, Webhook, SlugPrice)

ENDPOINTS = "/v1/gateway/endpoints"
GROUPS = "/v1/gateway/groups"
WEBHOOKS = "/v1/gateway/webhooks"
PRICES = "/v1/gateway/prices"
SECRETS = "/v1/secrets"
MODELS = "/v1/models"
TABLES = "/console/tables.json"


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


async def read_provider_names(client: Client) -> dict[str, str]:
    """The names of providers that this installation knows, with its own aliases, and the provider of each."""
    tables = await client.call("GET", TABLES)
    # Control of older versions does not show what an alias of its own stands for.
    return {one["name"]: one.get("provider") or own_provider(one["name"]) for one in tables["providers"]}


def _owned(item: Mapping[str, Any], value: V) -> OwnedResource[V]:
    owner = item.get("managed_by") or {"name": None, "drifted": False}
    return OwnedResource(item.get("id", ""), value, owner["name"], owner["drifted"])


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
