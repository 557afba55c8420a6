"""Finds resources by the names that people use: slugs, external ids, names; or by their ids.

An id is tried first. What is not unique has to be given by its id. RefusedError if there is none.
"""

from collections.abc import Callable
from typing import Any

from commands.connection import Client
from commands.editing.paths import path
from commands.errors import RefusedError
from commands.lists import all_items, items_of

Item = dict[str, Any]
ENDPOINTS = path("gateway", "endpoints")
GROUPS = path("gateway", "groups")
WEBHOOKS = path("gateway", "webhooks")
SECRETS = path("secrets")
MODELS = path("models")


async def endpoint(client: Client, name: str) -> Item:
    """The endpoint with this slug or id."""
    return await _only(client, ENDPOINTS, "endpoint", lambda item: name in (item["slug"], item["id"]), name)


async def group(client: Client, name: str) -> Item:
    """The group with this id or external id."""
    if name.startswith("grp_"):
        try:
            item: Item = await client.call("GET", path("gateway", "groups", name))
            return item
        except RefusedError as error:
            if error.status != 404:
                raise
    items = await all_items(client, GROUPS, external_entity_id=name)
    return _one(items, "group", name)


async def group_id(client: Client, name: str) -> str:
    return str((await group(client, name))["id"])


async def external_id(client: Client, name: str) -> str:
    """The external id of the group with this id. Any other name is an external id, of a group that may be gone."""
    if not name.startswith("grp_"):
        return name
    try:
        item = await client.call("GET", path("gateway", "groups", name))
    except RefusedError as error:
        if error.status != 404:
            raise
        return name
    return str(item["metadata"]["external_entity_id"])


async def secret(client: Client, name: str) -> Item:
    """The secret with this name or id."""
    return await _only(client, SECRETS, "secret", lambda item: name in (item["name"], item["id"]), name)


async def webhook(client: Client, name: str) -> Item:
    """The webhook with this id or URL."""
    return await _only(client, WEBHOOKS, "webhook", lambda item: name in (item["id"], item["url"]), name)


async def model(client: Client, name: str) -> Item:
    """The platform model with this id or name."""
    return await _only(client, MODELS, "model", lambda item: name in (item["id"], item["name"]), name)


async def deployment(client: Client, model_id: str, name: str) -> Item:
    """The model's deployment with this id or name, or of the environment with this name."""
    items = await all_items(client, path("models", model_id, "deployments"))
    for item in items:
        if name == item["id"]:
            return item
    matches = [item for item in items if name == item["name"]]
    if not matches:
        environments = await all_items(client, path("models", model_id, "environments"))
        ids = [one["deployment_id"] for one in environments if one["name"].lower() == name.lower()]
        matches = [item for item in items if item["id"] in ids]
    return _one(matches, "deployment", name)


async def training_project(client: Client, name: str) -> Item:
    """The training project with this id or name."""
    projects = (await client.call("GET", path("training_projects")))["training_projects"]
    return _one([project for project in projects if name in (project["id"], project["name"])], "training project", name)


async def training_job(client: Client, id: str) -> Item:
    """The training job with this id."""
    jobs = (await client.call("POST", path("training_jobs", "search"), {"job_id": id}))["training_jobs"]
    return _one(jobs, "training job", id)


async def _only(client: Client, listed: str, kind: str, is_meant: Callable[[Item], bool], name: str) -> Item:
    items = [item async for item in items_of(client, listed) if is_meant(item)]
    return _one([item for item in items if item["id"] == name] or items, kind, name)


def _one(matches: list[Item], kind: str, name: str) -> Item:
    if not matches:
        raise RefusedError(f"there is no {kind} {name!r} in this workspace", 404, "NOT_FOUND")
    if len(matches) > 1:
        ids = ", ".join(item["id"] for item in matches[:5])
        raise RefusedError(f"several {kind}s are called {name!r}; give an id: {ids}")
    return matches[0]
