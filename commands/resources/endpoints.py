"""`tollgate endpoints`: slugs and their targets (docs/reference/command-line.md#resources)."""

from collections.abc import Callable, Mapping
from typing import Any, TextIO, TypeVar

import click

from commands.connection import Client, Connection, over_api
from commands.editing import known_names, names
from commands.editing.bodies import body_of, check_something, file_option, only
from commands.editing.deletion import ask_before, yes_option
from commands.editing.paths import path
from commands.editing.shown import call_and_print, print_answer
from commands.lists import print_list
from commands.output import Column
from policy.endpoints import ALLOWED_VALUES, PROVIDER_NAMES, PROVIDERS

F = TypeVar("F", bound=Callable[..., Any])
_NOT_SENT = ("model", "secret", "project_id", "location")
"""The flags whose values are names of something with an id, or members of an object."""


@click.group()
def endpoints() -> None:
    """Slugs and their targets."""


@endpoints.command("list")
@over_api
def list_endpoints(connection: Connection) -> None:
    """Print all endpoints."""
    print_list(connection, names.ENDPOINTS, _COLUMNS)


@endpoints.command()
@click.argument("endpoint", metavar="SLUG|ID", shell_complete=known_names.slugs)
@over_api
def get(endpoint: str, connection: Connection) -> None:
    """Print one endpoint."""
    print_answer(connection, connection.run(lambda client: names.endpoint(client, endpoint)))


def _target_options(command: F) -> F:
    for option in reversed(_TARGET_OPTIONS):
        command = option(command)
    return command


def _one_of(field: str) -> click.Choice[str]:
    return click.Choice(ALLOWED_VALUES[field], case_sensitive=False)


def _list_or_none(_context: click.Context, _parameter: click.Parameter, items: tuple[str, ...]) -> list[str] | None:
    return list(items) or None


def _having(field: str) -> str:
    """The providers whose targets have the field."""
    having = [name for name, rules in PROVIDERS.items() if field in rules.required | rules.optional]
    return ", ".join(name for name, one in PROVIDER_NAMES.items() if one.provider in having)


_TARGET_OPTIONS = (
    click.option("--provider", type=str.upper, help=f"Who answers: {', '.join(PROVIDER_NAMES)}, or an alias of yours."),
    click.option("--model", help=f"{_having('model_id')}: the model, by name or id."),
    click.option(
        "--environment",
        "environment_name",
        help=f"{_having('environment_name')}: the environment; `production` without it.",
    ),
    click.option("--secret", help="The upstream's credential, by the secret's name or id."),
    click.option("--target-model", help="The model's name at the upstream."),
    click.option("--base-url", help=f"{_having('base_url')}: the server."),
    click.option("--project-id", help=f"{_having('vendor_c_config')}: the project in the vendor's cloud."),
    click.option("--location", help=f"{_having('vendor_c_config')}: the location."),
    click.option(
        "--upstream-state",
        type=_one_of("upstream_state"),
        help="Whether callers may name files, conversations and the like in the vendor's account; `REFUSE` without it.",
    ),
    click.option(
        "--dialect",
        "dialects",
        multiple=True,
        type=_one_of("dialects"),
        callback=_list_or_none,
        help="A dialect that the server speaks, the preferred one first; may be repeated.",
    ),
    click.option(
        "--price-options",
        type=_one_of("price_options"),
        help="Whether callers may ask for what costs beside tokens; `PASS` without it.",
    ),
    file_option,
)


@endpoints.command()
@click.argument("slug", required=False)
@_target_options
@click.option("--region", help="A region that the installation has; `UNRESTRICTED` without it. It cannot change.")
@over_api
def create(slug: str | None, connection: Connection, file: TextIO | None, region: str | None, **flags: Any) -> None:
    """Create an endpoint for SLUG, with the target that flags or -f describe."""
    body = body_of(file, only(slug=slug, region=region))

    async def work(client: Client) -> Any:
        target = await _target_of(client, flags)
        if target:
            body["targets"] = [_written(_first_target(body) | target)]
        return await client.call("POST", names.ENDPOINTS, body)

    print_answer(connection, connection.run(work))


@endpoints.command("set")
@click.argument("endpoint", metavar="SLUG|ID", shell_complete=known_names.slugs)
@_target_options
@over_api
def set_endpoint(endpoint: str, connection: Connection, file: TextIO | None, **flags: Any) -> None:
    """Change the target. What no flag names stays, unless --provider or `targets` of -f gives a new target."""
    body = body_of(file, {})
    check_something(body or only(**flags))

    async def work(client: Client) -> Any:
        item = await names.endpoint(client, endpoint)
        is_new = body.get("targets") is not None or flags["provider"] is not None
        target = await _target_of(client, flags)
        if target or not is_new:
            item = await client.call("GET", path("gateway", "endpoints", item["id"]))  # the version that is changed
            old = _first_target(body) if is_new else dict(item["targets"][0])
            body["targets"] = [_written(old | target)]
        return await client.call("PATCH", path("gateway", "endpoints", item["id"]), body)

    print_answer(connection, connection.run(work))


@endpoints.command()
@click.argument("endpoint", metavar="SLUG|ID", shell_complete=known_names.slugs)
@yes_option
@over_api
def delete(endpoint: str, is_sure: bool, connection: Connection) -> None:
    """Delete an endpoint. Its slug answers 404 from then on."""
    item = connection.run(lambda client: names.endpoint(client, endpoint))
    ask_before(f"endpoint {item['slug']}", is_sure)
    call_and_print(connection, "DELETE", path("gateway", "endpoints", item["id"]))


async def _target_of(client: Client, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The members of the target that flags give; names become ids."""
    target = only(**{name: value for name, value in flags.items() if name not in _NOT_SENT})
    if flags["model"] is not None:
        target["model_id"] = (await names.model(client, flags["model"]))["id"]
    if flags["secret"] is not None:
        target["secret_id"] = (await names.secret(client, flags["secret"]))["id"]
    if place := only(project_id=flags["project_id"], location=flags["location"]):
        target["vendor_c_config"] = place
    return target


def _written(target: dict[str, Any]) -> dict[str, Any]:
    """The target, whose flags have the provider's own names, with the fields' names beside an alias."""
    name = PROVIDER_NAMES.get(str(target.get("provider")))
    return target if name is None else name.written(target)


def _first_target(body: Mapping[str, Any]) -> dict[str, Any]:
    targets = body.get("targets")
    return dict(targets[0]) if isinstance(targets, list) and targets and isinstance(targets[0], dict) else {}


def _target(field: str) -> Any:
    def cell(endpoint: Mapping[str, Any]) -> Any:
        return endpoint["targets"][0].get(field)

    return cell


_COLUMNS = (
    Column("SLUG", lambda endpoint: endpoint["slug"]),
    Column("PROVIDER", _target("provider")),
    Column("TARGET MODEL", _target("target_model")),
    Column("ID", lambda endpoint: endpoint["id"]),
    Column("UPDATED", lambda endpoint: endpoint["updated_at"]),
)
