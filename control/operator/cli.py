"""The `tollgate` command: parses arguments and prints results (docs/reference/command-line.md).

The work is elsewhere: `stack` runs the product, `resources/workspaces` changes the database, `demo` shows the product.
Control imports neither proxy nor trainer: `tollgate proxy` becomes `python -m proxy`. `launcher` brings its command.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from control.operator.training_commands import training
from launcher.command import launcher
from policy.credentials import KeyKind
from runtime.private_files import UMASK

if TYPE_CHECKING:  # commands import what they need when they run, so `tollgate --help` is fast
    from control.edges.sql.store import Store
    from control.operator.bootstrap import Database

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_DATA = Path(".tollgate")
_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
_WORKSPACE_KINDS = [kind.value for kind in KeyKind if kind is not KeyKind.FEDERATED]


def main() -> None:
    """Entry point of the console script."""
    os.umask(UMASK)
    tollgate(prog_name="tollgate")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="tollgate", message="tollgate %(version)s")
def tollgate() -> None:
    """Tollgate: an inference gateway with exact limits, exact metering and exact billing."""


# --- running it ---------------------------------------------------------------------------------------------------

data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="TOLLGATE_DATA",
    default=DEFAULT_DATA,
    show_default=True,
    help="The data directory of `tollgate up`.",
)
port_type = click.IntRange(0, 65535)


@tollgate.command()
@data_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--proxy-port", type=port_type, default=8080, show_default=True, help="Inference; 0 picks a free port.")
@click.option("--control-port", type=port_type, default=8081, show_default=True, help="The management API.")
@click.option("--admin-port", type=port_type, default=8082, show_default=True, help="The proxy's health and metrics.")
@click.option(
    "--admin-host", default="127.0.0.1", show_default=True, help="The admin port's address; --host does not change it."
)
@click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Proxy worker processes.")
@click.option("--redis-url", envvar="TOLLGATE_REDIS_URL", help="URL of your own Redis; without it, one is started.")
@click.option(
    "--database-url", envvar="TOLLGATE_DATABASE_URL", help="URL of your own database; without it, SQLite in --data."
)
@click.option("--drain-timeout", envvar="TOLLGATE_DRAIN_TIMEOUT_S", type=click.FloatRange(0), default=25.0, hidden=True)
def up(
    data: Path,
    host: str,
    proxy_port: int,
    control_port: int,
    admin_port: int,
    admin_host: str,
    workers: int,
    redis_url: str | None,
    database_url: str | None,
    drain_timeout: float,
) -> None:
    """Run the whole product on this machine until SIGTERM or Ctrl-C.

    Prints one line `ready …` with the URLs on standard output when all parts answer.
    """
    from control.operator import stack

    ports = stack.Ports(proxy_port, control_port, admin_port)
    environment = dict(os.environ)
    options = stack.Options(
        data=data,
        host=host,
        admin_host=admin_host,
        ports=ports,
        workers=workers,
        redis_url=redis_url or None,
        database_url=database_url or None,
        environment=environment,
        drain_timeout_s=drain_timeout,
    )
    _run(stack.up(options, _say, click.echo))


@tollgate.command(context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def control(arguments: tuple[str, ...]) -> None:
    """Run only the control plane; settings from the environment, flags override (see `tollgate control --help`)."""
    _become("control", *arguments)


@tollgate.command(context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def proxy(arguments: tuple[str, ...]) -> None:
    """Run only the data plane; settings from the environment, flags override (see `tollgate proxy --help`)."""
    _become("proxy", *arguments)


@tollgate.command(context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def trainer(arguments: tuple[str, ...]) -> None:
    """Run only the trainer, which runs training jobs; settings from the environment (see `tollgate trainer --help`)."""
    _become("trainer", *arguments)


@tollgate.command()
@click.option("--keep", is_flag=True, help="Keep the data directory afterwards and print its path.")
def demo(keep: bool) -> None:
    """Run the product on free ports and show its main features, step by step, through the public API.

    The exit status is 0 only if each step held.
    """
    from control.demo.story import run_demo

    sys.exit(asyncio.run(run_demo(click.echo, keep=keep)))


tollgate.add_command(launcher)
tollgate.add_command(training)


# --- workspaces, keys, secrets ------------------------------------------------------------------------------------


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


@tollgate.group()
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
def workspace_set(name: str, **given: Any) -> None:
    """Change a workspace and print it as one JSON object."""
    from control.resources import workspaces

    changes = {
        field: given.pop(field) for field in ("tier", "onboarded", "training", "billing", "async_max_body_bytes")
    }
    if all(value is None for value in changes.values()):
        flags = "--tier, --onboarded, --not-onboarded, --training, --no-training, --billing or --async-max-body-bytes"
        raise click.UsageError(f"nothing to change: give {flags}")
    _change(given, lambda store: workspaces.set_workspace(store, name, **changes))


@workspace.command("list")
@changes_the_database
def workspace_list(**where: Any) -> None:
    """Print every workspace, one JSON object a line."""
    from control.resources import workspaces

    _change(where, workspaces.list_workspaces)


@tollgate.group()
def key() -> None:
    """Workspace keys."""


@key.command("create")
@click.argument("name")
@click.option("--type", "kind", type=click.Choice(_WORKSPACE_KINDS), default=_WORKSPACE_KINDS[0], show_default=True)
@changes_the_database
def key_create(name: str, kind: str, **where: Any) -> None:
    """Create a key for the workspace NAME and print it as one JSON object. It is shown only here."""
    from control.resources import workspaces

    _change(where, lambda store: workspaces.create_workspace_key(store, name, KeyKind(kind)))


@tollgate.group()
def secrets() -> None:
    """Stored upstream credentials."""


@secrets.command("reencrypt")
@changes_the_database
def secrets_reencrypt(**where: Any) -> None:
    """Re-encrypt every secret under the first key of TOLLGATE_SECRET_KEY."""
    from control.resources import workspaces
    from policy.sealing import parse_keys

    def reencrypt(store: "Store") -> Awaitable[Any]:
        return workspaces.reencrypt_all(store, parse_keys(_database(where).secret_key()))

    _change(where, reencrypt)


@tollgate.group()
def snapshot() -> None:
    """What the proxy on this machine serves from."""


@snapshot.command("show")
@click.option("--slug", help="Show the target of this slug.")
@click.option("--key-prefix", help="Show what the key with this prefix may call, and which limits bind.")
@data_option
@click.pass_context
def snapshot_show(context: click.Context, slug: str | None, key_prefix: str | None, data: Path) -> None:
    """What a proxy on this machine would do now, and which limits bind."""
    is_given = context.get_parameter_source("data") is not ParameterSource.DEFAULT
    where = ("--data", str(data)) if is_given else ()  # without --data, TOLLGATE_REPLICA_PATH may name the replica
    flags = [("--slug", slug), ("--key-prefix", key_prefix)]
    query = [word for flag, value in flags if value is not None for word in (flag, value)]
    _become("proxy", *where, "snapshot", "show", *query)


# --- how a command ends -------------------------------------------------------------------------------------------


def _change(where: dict[str, Any], work: Callable[["Store"], Awaitable[Any]]) -> None:
    """Run `work` on the database that `where` names and print its result as JSON; a list as one item per line."""
    from control.operator.bootstrap import on_store

    result = _run(on_store(_database(where), work))
    for item in result if isinstance(result, list) else [result]:
        click.echo(json.dumps(item, ensure_ascii=False))


def _database(where: dict[str, Any]) -> "Database":
    from control.operator.bootstrap import Database

    may_create = where.get("may_create", False)
    return Database(where["data"], where["database_url"] or None, where["redis_url"] or None, os.environ, may_create)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`. An error that the operator can fix ends as one line and exit status 1."""
    try:
        return asyncio.run(work)
    except _operator_errors() as error:
        raise click.ClickException(str(error)) from error


def _operator_errors() -> tuple[type[Exception], ...]:
    """Imported when something fails: `up` needs nothing else of what comes with them, and starts in half the time."""
    from control.operator.bootstrap import OPERATOR_ERRORS

    return OPERATOR_ERRORS


def _say(text: str) -> None:
    click.echo(f"tollgate: {text}", err=True)


def _become(package: str, *arguments: str) -> None:
    """Replace this process by `python -m package …`, so that signals and exit status are that program's.

    `-P`: a module in the working directory cannot shadow an installed one.
    """
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", package, *arguments])  # noqa: S606 (no shell is the point)


if __name__ == "__main__":
    main()
