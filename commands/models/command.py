"""`tollgate models`: platform models (docs/reference/command-line.md#models)."""

from typing import Any, TextIO

import click

from commands.connection import Client, Connection, over_api
from commands.editing import known_names, names
from commands.editing.bodies import body_of, check_something, file_option, only
from commands.editing.deletion import ask_before, yes_option
from commands.editing.paths import path
from commands.editing.shown import call_and_print, print_answer
from commands.lists import print_list
from commands.models.deployments import deployments
from commands.models.environments import environments
from commands.output import Column

_model = click.argument("model", metavar="NAME|ID", shell_complete=known_names.models)


@click.group()
def models() -> None:
    """Platform models, their deployments and environments."""


@models.command("list")
@over_api
def list_models(connection: Connection) -> None:
    """Print all models."""
    print_list(connection, names.MODELS, _COLUMNS)


@models.command()
@_model
@over_api
def get(model: str, connection: Connection) -> None:
    """Print one model."""
    print_answer(connection, connection.run(lambda client: names.model(client, model)))


@models.command()
@click.argument("name", required=False)
@file_option
@over_api
def create(name: str | None, file: TextIO | None, connection: Connection) -> None:
    """Register a model."""
    call_and_print(connection, "POST", names.MODELS, body_of(file, only(name=name)))


@models.command("set")
@_model
@click.option("--name", help="Its new name.")
@file_option
@over_api
def set_model(model: str, name: str | None, file: TextIO | None, connection: Connection) -> None:
    """Rename a model."""
    body = body_of(file, only(name=name))
    check_something(body)

    async def work(client: Client) -> Any:
        return await client.call("PATCH", path("models", (await names.model(client, model))["id"]), body)

    print_answer(connection, connection.run(work))


@models.command()
@_model
@yes_option
@over_api
def delete(model: str, is_sure: bool, connection: Connection) -> None:
    """Delete a model that no endpoint names, with its deployments, environments and logs."""
    item = connection.run(lambda client: names.model(client, model))
    ask_before(f"model {item['name']} ({item['id']}) with its deployments", is_sure)
    call_and_print(connection, "DELETE", path("models", item["id"]))


_COLUMNS = (
    Column("NAME", lambda model: model["name"]),
    Column("ID", lambda model: model["id"]),
    Column("DEPLOYMENTS", lambda model: model["deployments_count"]),
    Column("PRODUCTION", lambda model: model["production_deployment_id"]),
    Column("CREATED", lambda model: model["created_at"]),
)

models.add_command(deployments)
models.add_command(environments)
