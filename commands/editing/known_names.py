"""Completion of arguments: the slugs, names and ids that the workspace has, as the management API lists them.

A shell has no place for a message, so whatever goes wrong completes nothing:
docs/reference/command-line.md#completion.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import click

from commands.connection import Client, connection_of
from commands.editing import names
from commands.editing.paths import path
from commands.errors import ManagementError
from commands.lists import items_of
from policy.credentials import KeyKind

PATIENCE_S = 2.0
MOST_NAMES = 10_000
Names = Callable[[Client, click.Context], AsyncIterator[str]]
Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def completed_by(all_names: Names) -> Completion:
    """The `shell_complete` of an argument: those of `all_names` that begin as the word does."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        async def matches(client: Client) -> list[str]:
            words: list[str] = []
            count = 0
            try:
                async with asyncio.timeout(PATIENCE_S):
                    async for name in all_names(client, context):
                        words += [name] if name.startswith(incomplete) and name.isprintable() else []
                        count += 1
                        if count == MOST_NAMES:
                            break
            except (ManagementError, TimeoutError):
                pass  # what came in time is better than nothing
            return words

        try:
            return connection_of(context).run(matches)
        except click.ClickException:  # there is no key, or nothing that serves the data directory
            return []

    return complete


def _listed(listed: str, name_of: Callable[[dict[str, Any]], str], **query: str) -> Completion:
    async def all_names(client: Client, _context: click.Context) -> AsyncIterator[str]:
        async for item in items_of(client, listed, **query):
            yield name_of(item)

    return completed_by(all_names)


async def _key_prefixes(client: Client, context: click.Context) -> AsyncIterator[str]:
    group = context.params.get("group")
    listed = path("api_keys")
    if group is not None:
        listed = path("gateway", "groups", await names.group_id(client, group), "api_keys")
    async for item in items_of(client, listed):
        yield item["prefix"]


async def _federated_prefixes(client: Client, context: click.Context) -> AsyncIterator[str]:
    """Yield the keys of the group that the words before name, or of all groups."""
    group = context.params.get("group")
    listed = path("gateway", "api_keys")
    query = {"type": KeyKind.FEDERATED.value}
    if group is not None:
        listed = path("gateway", "groups", await names.group_id(client, group), "api_keys")
        query = {}
    async for item in items_of(client, listed, **query):
        yield item["prefix"]


async def _deployments(client: Client, context: click.Context) -> AsyncIterator[str]:
    async for item in items_of(client, await _below_model(client, context, "deployments")):
        yield item["name"]


async def _environments(client: Client, context: click.Context) -> AsyncIterator[str]:
    async for item in items_of(client, await _below_model(client, context, "environments")):
        yield item["name"]


async def _below_model(client: Client, context: click.Context, kind: str) -> str:
    return path("models", (await names.model(client, context.params["model"]))["id"], kind)


async def _projects(client: Client, _context: click.Context) -> AsyncIterator[str]:
    for project in (await client.call("GET", path("training_projects")))["training_projects"]:
        yield project["name"]


async def _jobs(client: Client, _context: click.Context) -> AsyncIterator[str]:
    for job in (await client.call("POST", path("training_jobs", "search"), {}))["training_jobs"]:
        yield job["id"]


slugs = _listed(names.ENDPOINTS, lambda item: item["slug"])
groups = _listed(names.GROUPS, lambda item: item["metadata"]["external_entity_id"], effective_models="false")
secrets = _listed(names.SECRETS, lambda item: item["name"])
webhooks = _listed(names.WEBHOOKS, lambda item: item["id"])
models = _listed(names.MODELS, lambda item: item["name"])
key_prefixes = completed_by(_key_prefixes)
federated_prefixes = completed_by(_federated_prefixes)
deployments = completed_by(_deployments)
environments = completed_by(_environments)
training_projects = completed_by(_projects)
training_jobs = completed_by(_jobs)
