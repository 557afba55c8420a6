"""`tollgate models environments`: names that point to a deployment of a model."""

from typing import Any, TextIO

import click

from commands.connection import Client, Connection, over_api
from commands.editing import known_names, names
from commands.editing.bodies import body_of, check_something, file_option, only
from commands.editing.deletion import ask_before, yes_option
from commands.editing.paths import path
from commands.editing.shown import print_answer
from commands.lists import all_items, print_items
from commands.output import Column

_model = click.argument("model", metavar="MODEL", shell_complete=known_names.models)
_environment = click.argument("environment", metavar="NAME", shell_complete=known_names.environments)


@click.group()
def environments() -> None:
    """Environments of a model, such as `production`: names that point to a deployment."""


@environments.command("list")
@_model
@over_api
def list_environments(model: str, connection: Connection) -> None:
    """Print all environments of a model."""

    async def work(client: Client) -> Any:
        return await all_items(client, path("models", (await names.model(client, model))["id"], "environments"))

    print_items(connection, connection.run(work), _COLUMNS)


@environments.command()
@_model
@_environment
@over_api
def get(model: str, environment: str, connection: Connection) -> None:
    """Print one environment."""
    _call(connection, "GET", model, environment)


@environments.command()
@_model
@click.argument("environment", metavar="[NAME]", required=False)
@file_option
@over_api
def create(model: str, environment: str | None, file: TextIO | None, connection: Connection) -> None:
    """Make an empty environment. Until it points to a deployment, calls are answered as if it were not there."""
    body = body_of(file, only(name=environment))
    if "name" not in body:
        raise click.UsageError("give NAME, or a name by -f")

    async def work(client: Client) -> Any:
        return await client.call("POST", path("models", (await names.model(client, model))["id"], "environments"), body)

    print_answer(connection, connection.run(work))


@environments.command()
@_model
@_environment
@click.argument("deployment", metavar="DEPLOYMENT", shell_complete=known_names.deployments)
@over_api
def promote(model: str, environment: str, deployment: str, connection: Connection) -> None:
    """Point an environment that is there to a deployment, by name or id, and print the deployment."""

    async def work(client: Client) -> Any:
        id = (await names.model(client, model))["id"]
        body = {"deployment_id": (await names.deployment(client, id, deployment))["id"]}
        return await client.call("POST", path("models", id, "environments", environment, "promote"), body)

    print_answer(connection, connection.run(work))


@environments.command("set")
@_model
@_environment
@click.argument("deployment", metavar="[DEPLOYMENT]", required=False, shell_complete=known_names.deployments)
@file_option
@over_api
def set_environment(
    model: str, environment: str, deployment: str | None, file: TextIO | None, connection: Connection
) -> None:
    """Point an environment to a deployment, by name or id. Makes the environment if it is not there."""
    body = body_of(file, {})
    check_something(body or ({} if deployment is None else {"deployment_id": deployment}))

    async def work(client: Client) -> Any:
        id = (await names.model(client, model))["id"]
        if deployment is not None:
            body["deployment_id"] = (await names.deployment(client, id, deployment))["id"]
        return await client.call("PUT", path("models", id, "environments", environment), body)

    print_answer(connection, connection.run(work))


@environments.command()
@_model
@_environment
@yes_option
@over_api
def delete(model: str, environment: str, is_sure: bool, connection: Connection) -> None:
    """Delete an environment that no endpoint routes to. The deployment stays."""
    ask_before(f"environment {environment} of {model}", is_sure)
    _call(connection, "DELETE", model, environment)


def _call(connection: Connection, method: str, model: str, environment: str) -> None:
    async def work(client: Client) -> Any:
        id = (await names.model(client, model))["id"]
        return await client.call(method, path("models", id, "environments", environment))

    print_answer(connection, connection.run(work))


_COLUMNS = (
    Column("NAME", lambda environment: environment["name"]),
    Column("DEPLOYMENT", lambda environment: environment["deployment_id"]),
    Column("UPDATED", lambda environment: environment["updated_at"]),
)
