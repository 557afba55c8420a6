"""Commands that work on the database itself, without a running control plane: workspaces, their keys, re-encryption,
machines of the proxy.

The rules are in `control/resources/workspaces.py` and `control/resources/spend/machines.py`
(docs/reference/command-line.md#administration).
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commands.editing.deletion import is_terminal, yes_option
from policy.credentials import KeyKind
from policy.keys.roles import Role, optional_role

if TYPE_CHECKING:  # commands import what they need when they run, so `tollgate --help` is fast
    from control.edges.sql.store import Store
    from control.operator.bootstrap import Database
    from control.operator.key_rotation import KeyRotation

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_DATA = Path(".tollgate")
_WORKSPACE_KINDS = [kind.value for kind in KeyKind if kind is not KeyKind.FEDERATED]

data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="TOLLGATE_DATA",
    default=DEFAULT_DATA,
    show_default=True,
    help="The data directory of `tollgate up`.",
)


def changes_the_database(command: F) -> F:
    """The options of a command that works on the database: its URL, or the data directory of the embedded one."""
    url_help = "The database; without it, the embedded one in --data."
    command = click.option("--redis-url", envvar="TOLLGATE_REDIS_URL", hidden=True)(command)
    return data_option(click.option("--database-url", envvar="TOLLGATE_DATABASE_URL", help=url_help)(command))


def _known_tier(_context: click.Context, _option: click.Parameter, tier: str | None) -> str | None:
    """Refuse an unknown tier: a workspace with a mistyped tier would get the lowest limits."""
    from control.resources import workspaces

    if tier is not None:
        try:
            workspaces.check_tier_is_known(tier, os.environ)
        except workspaces.WorkspaceError as error:
            raise click.ClickException(error.message) from None
    return tier


def _bytes_or_default(_context: click.Context, _option: click.Parameter, text: str | None) -> int | str | None:
    """A whole number, or the word that `set_workspace` takes for "no value of its own"."""
    from control.resources.workspaces import DEFAULT, MAX_ASYNC_BODY_BYTES

    if text is None or text == DEFAULT:
        return text
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_ASYNC_BODY_BYTES:
        return int(text)
    raise click.BadParameter(f"{text!r} is neither a number from 1 to {MAX_ASYNC_BODY_BYTES} nor {DEFAULT!r}.")


tier_option = partial(
    click.option,
    "--tier",
    callback=_known_tier,
    help="Tier of the platform model API's limits: basic, verified, pro, one of TOLLGATE_MODEL_API_TIERS, or "
    "custom=REQUESTS/TOKENS per minute for this workspace alone.",
)


@click.group()
def workspace() -> None:
    """Create, change and list workspaces (tenants)."""


@workspace.command("create")
@click.argument("name")
@click.argument("more_prefixes", nargs=-1, metavar="")
@click.option(
    "--prefix", "prefixes", multiple=True, required=True, help="A slug prefix that the workspace owns; more may follow."
)
@tier_option(default="basic", show_default=True)
@click.option("--not-onboarded", is_flag=True, help="Not onboarded to the gateway yet.")
@changes_the_database
def workspace_create(
    name: str, more_prefixes: tuple[str, ...], prefixes: tuple[str, ...], tier: str, not_onboarded: bool, **where: Any
) -> None:
    """Create a workspace and print it as one JSON object. Its api_key has management scope and is shown only here.

    Several prefixes: `--prefix a b` or `--prefix a --prefix b`.
    """
    from control.resources import workspaces

    owned = (*prefixes, *more_prefixes)
    where["may_create"] = True  # the first workspace may be created before the first `up`
    _change(where, lambda store: workspaces.create_workspace(store, name, owned, tier, not not_onboarded))


@workspace.command("set")
@click.argument("name")
@tier_option()
@click.option("--onboarded/--not-onboarded", default=None, help="Whether it is onboarded to the gateway.")
@click.option(
    "--training/--no-training", default=None, help="Whether it may create training jobs, which run code here."
)
@click.option("--billing", type=click.Choice(["active", "suspended"]), help="Suspended: its calls are answered 402.")
@click.option(
    "--async-max-body-bytes",
    callback=_bytes_or_default,
    metavar="N",
    help="Longest body of its asynchronous requests; `default` returns to TOLLGATE_ASYNC_MAX_BODY_BYTES.",
)
@changes_the_database
def workspace_set(name: str, **options: Any) -> None:
    """Change a workspace and print it as one JSON object."""
    from control.resources import workspaces

    changes = {
        field: options.pop(field) for field in ("tier", "onboarded", "training", "billing", "async_max_body_bytes")
    }
    if all(value is None for value in changes.values()):
        flags = "--tier, --onboarded, --not-onboarded, --training, --no-training, --billing or --async-max-body-bytes"
        raise click.UsageError(f"nothing to change: give {flags}")
    _change(options, lambda store: workspaces.set_workspace(store, name, **changes))


@workspace.command("list")
@changes_the_database
def workspace_list(**where: Any) -> None:
    """Print every workspace, one JSON object a line."""
    from control.resources import workspaces

    _change(where, workspaces.list_workspaces)


@click.group()
def key() -> None:
    """Workspace keys."""


@key.command("create")
@click.argument("name")
@click.option("--type", "kind", type=click.Choice(_WORKSPACE_KINDS), default=_WORKSPACE_KINDS[0], show_default=True)
@click.option("--role", type=click.Choice([role.value for role in Role]), help="Of WORKSPACE_MANAGE_ALL; else admin.")
@changes_the_database
def key_create(name: str, kind: str, role: str | None, **where: Any) -> None:
    """Create a key for the workspace NAME and print it as one JSON object. It is shown only here."""
    from control.resources import workspaces

    _change(where, lambda store: workspaces.create_workspace_key(store, name, KeyKind(kind), optional_role(role)))


@click.command("reencrypt")
@changes_the_database
def secrets_reencrypt(**where: Any) -> None:
    """Re-encrypt every secret under the first key of TOLLGATE_SECRET_KEY."""
    from control.resources.sealing import resealing

    def reencrypt(store: "Store") -> Awaitable[Any]:
        return resealing.reencrypt(store, _database(where).secret_keys())

    _change(where, reencrypt)


@click.command("rotate-key")
@click.option("--drop-old", "is_drop", is_flag=True, help="Make no new key; drop the old ones. Ends what they sealed.")
@yes_option
@changes_the_database
def secrets_rotate_key(is_drop: bool, is_sure: bool, **where: Any) -> None:
    """Put a new key in front of those in secret.key of --data, and seal everything under it. Calls go on.

    A rotation that was cut off goes on when this is run again. The old keys stay, to open links, cursors and
    reasoning that they sealed, until --drop-old.
    """
    from control.operator.key_rotation import KeyRotation

    rotation = KeyRotation(_database(where))
    run(_checked_source(rotation))
    if is_drop and not is_sure:
        ask_or_refuse("Drop the old secret keys? Links, cursors and reasoning that they sealed end.")
    _change(where, rotation.drop_old if is_drop else rotation.rotate)


async def _checked_source(rotation: "KeyRotation") -> None:
    rotation.check_source()


def ask_or_refuse(question: str) -> None:
    """Ask on a terminal. Elsewhere nobody could answer: refuse without --yes."""
    if not is_terminal():
        raise click.ClickException(f"{question} Nothing was changed: add --yes if that is meant")
    click.confirm(question, abort=True, err=True)


@click.group()
def spend() -> None:
    """Machines of the proxy whose calls may still have reserved of spend limits."""


@spend.command("machines")
@changes_the_database
def spend_machines(**where: Any) -> None:
    """Print every machine that may still give events, one JSON object a line.

    `waiting_trees`: root groups whose HARD spend limits refuse calls until the machine has told that its reservations
    are in Redis again.
    """
    from control.resources.spend import machines

    _change(where, machines.list_machines)


@spend.command("release")
@click.option("--machine", "name", required=True, help="Its name, as `tollgate spend machines` prints it.")
@click.option("--force", is_flag=True, help="Release it although it told within the last minute that it lives.")
@changes_the_database
def spend_release(name: str, force: bool, **where: Any) -> None:
    """Release what the calls of a machine that never comes back reserved of spend limits; print the machine.

    No tree waits for it any more. If it comes back, its events are counted as ever.
    """
    from control.resources.spend import machines

    _change(where, lambda store: machines.release_machine(store, name, is_forced=force))


def _change(where: dict[str, Any], work: Callable[["Store"], Awaitable[Any]]) -> None:
    """Run `work` on the database that `where` names and print its result as JSON; a list as one item per line."""
    from control.operator.bootstrap import on_store

    result = run(on_store(_database(where), work))
    for item in result if isinstance(result, list) else [result]:
        click.echo(json.dumps(item, ensure_ascii=False))


def _database(where: dict[str, Any]) -> "Database":
    from control.operator.bootstrap import Database

    may_create = where.get("may_create", False)
    return Database(where["data"], where["database_url"] or None, where["redis_url"] or None, os.environ, may_create)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`. An error that the operator can fix ends as one line and exit status 1."""
    try:
        return asyncio.run(work)
    except _operator_errors() as error:
        raise click.ClickException(_told(error)) from error


def _told(error: Exception) -> str:
    """Return the error's text. The reason why a database is away is for the operator, not for callers of the API."""
    from control.errors import DatabaseUnavailableError

    if isinstance(error, DatabaseUnavailableError) and error.reason:
        return f"the database cannot be reached: {error.reason}. `tollgate doctor` says what to mend"
    return str(error)


def _operator_errors() -> tuple[type[Exception], ...]:
    """Import the errors when something fails: `up` needs none of them, and starts in half the time."""
    from control.operator.bootstrap import OPERATOR_ERRORS

    return OPERATOR_ERRORS
