"""`tollgate models deployments`: the versions of a model that run, their replicas and logs."""

from collections.abc import Callable
from typing import Any, TextIO, TypeVar

import click

from commands.connection import Client, Connection, over_api
from commands.editing import known_names, names
from commands.editing.bodies import body_of, check_something, file_option, only
from commands.editing.deletion import ask_before, yes_option
from commands.editing.paths import path
from commands.editing.shown import call_and_print, print_answer
from commands.lists import all_items, print_items
from commands.log_lines import log_options, print_log
from commands.output import Column, json_text

F = TypeVar("F", bound=Callable[..., Any])
_model = click.argument("model", metavar="MODEL", shell_complete=known_names.models)
_deployment = click.argument("deployment", metavar="DEPLOYMENT", shell_complete=known_names.deployments)


@click.group()
def deployments() -> None:
    """Deployments of a model. MODEL is a name or id; DEPLOYMENT a name, an id, or an environment's name."""


@deployments.command("list")
@_model
@over_api
def list_deployments(model: str, connection: Connection) -> None:
    """Print all deployments of a model."""

    async def work(client: Client) -> Any:
        return await all_items(client, path("models", (await names.model(client, model))["id"], "deployments"))

    print_items(connection, connection.run(work), _COLUMNS)


@deployments.command()
@_model
@_deployment
@over_api
def get(model: str, deployment: str, connection: Connection) -> None:
    """Print one deployment: its settings, status, replicas and load."""
    print_answer(connection, connection.run(lambda client: _find(client, model, deployment)))


def _settings(command: F) -> F:
    for option in reversed(_SETTINGS):
        command = option(command)
    return command


_SETTINGS = (
    click.option("--wake-url", help="Asked for replicas when calls wait for them."),
    click.option("--max-concurrency", type=int, help="Calls in flight per replica."),
    click.option("--max-queued", type=int, help="Calls that may wait for that, per replica."),
    click.option("--health-path", help="Probe replicas at this path."),
    file_option,
)


@deployments.command()
@_model
@click.argument("name", required=False)
@_settings
@over_api
def create(model: str, name: str | None, connection: Connection, file: TextIO | None, **flags: Any) -> None:
    """Register a deployment of a model."""
    body = body_of(file, only(name=name) | _members(flags))

    async def work(client: Client) -> Any:
        return await client.call("POST", path("models", (await names.model(client, model))["id"], "deployments"), body)

    print_answer(connection, connection.run(work))


@deployments.command("set")
@_model
@_deployment
@click.option("--name", help="Its new name.")
@_settings
@over_api
def set_deployment(model: str, deployment: str, connection: Connection, file: TextIO | None, **flags: Any) -> None:
    """Change a deployment's settings."""
    body = body_of(file, only(name=flags["name"]) | _members(flags))
    check_something(body)
    _call(connection, "PATCH", (model, deployment), (), body)


@deployments.command()
@_model
@_deployment
@click.argument("urls", nargs=-1, metavar="[URL]...")
@over_api
def replicas(model: str, deployment: str, urls: tuple[str, ...], connection: Connection) -> None:
    """Set the whole list of replicas to the URLs. Without one, the deployment has none."""
    _call(connection, "PUT", (model, deployment), ("replicas",), {"replicas": list(urls)})


@deployments.command()
@_model
@_deployment
@click.argument("status")
@click.option("--error-message", help="Why, for the log; a FAILED deployment shows it.")
@over_api
def status(model: str, deployment: str, status: str, error_message: str | None, connection: Connection) -> None:
    """Report a status, as a launcher does."""
    body = {"status": status.upper()} | only(error_message=error_message)
    _call(connection, "PUT", (model, deployment), ("status",), body)


@deployments.command()
@_model
@_deployment
@over_api
def activate(model: str, deployment: str, connection: Connection) -> None:
    """Let a deployment serve again."""
    _call(connection, "POST", (model, deployment), ("activate",))


@deployments.command()
@_model
@_deployment
@over_api
def deactivate(model: str, deployment: str, connection: Connection) -> None:
    """Stop serving a deployment. Its list of replicas is kept."""
    _call(connection, "POST", (model, deployment), ("deactivate",))


@deployments.command()
@_model
@_deployment
@over_api
def retry(model: str, deployment: str, connection: Connection) -> None:
    """Take up a deployment that has failed."""
    _call(connection, "POST", (model, deployment), ("retry",))


@deployments.command()
@_model
@_deployment
@click.option("--proxy-url", help="The proxy; on the machine of `tollgate up` its own.")
@over_api
def wake(model: str, deployment: str, proxy_url: str | None, connection: Connection) -> None:
    """Ask for replicas of a deployment, without a call."""
    proxy = connection.at_proxy(proxy_url)
    item = connection.run(lambda client: _find(client, model, deployment))
    place = path("models", item["model_id"], "deployment", item["id"], "wake").removeprefix("/v1")
    answer = proxy.run(lambda client: client.call("POST", place))
    click.echo(json_text(answer) if connection.as_json else f"Asked for replicas of {item['id']}.")


@deployments.command()
@_model
@_deployment
@log_options
@over_api
def logs(model: str, deployment: str, connection: Connection, **query: Any) -> None:
    """Print the latest lines of a deployment's log, the oldest first."""

    async def place(client: Client) -> str:
        item = await _find(client, model, deployment)
        return path("models", item["model_id"], "deployments", item["id"], "logs")

    print_log(connection, place, query)


@deployments.command()
@_model
@_deployment
@yes_option
@over_api
def delete(model: str, deployment: str, is_sure: bool, connection: Connection) -> None:
    """Delete a deployment that no environment points to."""
    item = connection.run(lambda client: _find(client, model, deployment))
    ask_before(f"deployment {item['name']} ({item['id']})", is_sure)
    call_and_print(connection, "DELETE", path("models", item["model_id"], "deployments", item["id"]))


def _call(
    connection: Connection, method: str, which: tuple[str, str], below: tuple[str, ...], body: Any = None
) -> None:
    """One call on the deployment that `which` (model, deployment) names, at the path `below` it; print its answer."""

    async def work(client: Client) -> Any:
        item = await _find(client, *which)
        return await client.call(method, path("models", item["model_id"], "deployments", item["id"], *below), body)

    print_answer(connection, connection.run(work))


async def _find(client: Client, model: str, deployment: str) -> dict[str, Any]:
    return await names.deployment(client, (await names.model(client, model))["id"], deployment)


def _members(flags: dict[str, Any]) -> dict[str, Any]:
    members = only(**{name: flags[name] for name in ("wake_url", "max_concurrency", "max_queued")})
    if flags["health_path"] is not None:
        members["health"] = {"path": flags["health_path"]}
    return members


_COLUMNS = (
    Column("NAME", lambda deployment: deployment["name"]),
    Column("ID", lambda deployment: deployment["id"]),
    Column("STATUS", lambda deployment: deployment["status"]),
    Column("ENVIRONMENT", lambda deployment: deployment["environment"]),
    Column("REPLICAS", lambda one: f"{one['active_replica_count']}/{len(one['replicas'])}"),
    Column("IN FLIGHT", lambda deployment: deployment["load"]["in_flight"]),
    Column("QUEUED", lambda deployment: deployment["load"]["queued"]),
    Column("PARKED", lambda deployment: deployment["load"]["parked"]),
)
