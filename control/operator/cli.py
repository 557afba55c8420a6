"""The `tollgate` command: parses arguments and prints results (docs/reference/command-line.md).

The work is elsewhere: `stack` runs the product, `resources/workspaces` changes the database, `demo` shows the product.
Control imports neither proxy nor trainer: `tollgate proxy` becomes `python -m proxy`. `launcher` brings its command.
"""

import asyncio
import io
import os
import sys
from pathlib import Path
from typing import TextIO

import click
from click.core import ParameterSource

from commands.completion import completion
from commands.contexts.command import context
from commands.over_api import OVER_API
from commands.resources.secrets import secrets
from control.operator.backup_commands import backup, restore
from control.operator.database_commands import (
    data_option,
    key,
    run,
    secrets_reencrypt,
    secrets_rotate_key,
    spend,
    workspace,
)
from control.operator.doctor.command import doctor
from control.operator.local_access import local_access
from control.operator.short_errors import ShortErrors
from launcher.command import launcher
from runtime.private_files import UMASK

_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def main() -> None:
    """Entry point of the console script."""
    os.umask(UMASK)
    use_utf_8(sys.stdout)
    tollgate(prog_name="tollgate")


def use_utf_8(stream: TextIO) -> None:
    """Encode files and pipes in UTF-8, as JSON and YAML are. A terminal shows `?` for what its encoding lacks."""
    if isinstance(stream, io.TextIOWrapper):
        if stream.isatty():
            stream.reconfigure(errors="replace")
        else:
            stream.reconfigure(encoding="utf-8")


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "obj": local_access}


@click.group(cls=ShortErrors, context_settings=_SETTINGS)
@click.version_option(package_name="tollgate", message="tollgate %(version)s")
def tollgate() -> None:
    """Tollgate: an inference gateway with exact limits, exact metering and exact billing."""


# --- running it ---------------------------------------------------------------------------------------------------

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
@click.option(
    "--example-upstream", is_flag=True, help="A scripted vendor answers in OpenAI's and Anthropic's place, for trying."
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
    example_upstream: bool,
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
        example_port=0 if example_upstream else None,
    )
    run(stack.up(options, _say, click.echo))


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
@click.option("--stay", is_flag=True, help="Keep the product running until Ctrl-C, to look at it in the console.")
def demo(keep: bool, stay: bool) -> None:
    """Run the product on free ports and show its main features, step by step, through the public API.

    The exit status is 0 only if each step held.
    """
    from control.demo.story import run_demo

    sys.exit(asyncio.run(run_demo(click.echo, keep=keep, stay=stay)))


tollgate.add_command(backup)
tollgate.add_command(restore)
tollgate.add_command(completion)
tollgate.add_command(context)
tollgate.add_command(doctor)
tollgate.add_command(launcher)
tollgate.add_command(workspace)
tollgate.add_command(key)
tollgate.add_command(spend)
for _command in OVER_API:
    tollgate.add_command(_command)
secrets.add_command(secrets_reencrypt)
secrets.add_command(secrets_rotate_key)


@tollgate.group()
def snapshot() -> None:
    """The policy that the proxy on this machine serves from."""


@snapshot.command("show")
@click.option("--slug", help="Show the target of this slug.")
@click.option("--key-prefix", help="Show what the key with this prefix may call, and which limits bind.")
@data_option
@click.pass_context
def snapshot_show(context: click.Context, slug: str | None, key_prefix: str | None, data: Path) -> None:
    """Show what a proxy on this machine would do now, and which limits bind."""
    is_given = context.get_parameter_source("data") is not ParameterSource.DEFAULT
    where = ("--data", str(data)) if is_given else ()  # without --data, TOLLGATE_REPLICA_PATH may name the replica
    flags = [("--slug", slug), ("--key-prefix", key_prefix)]
    query = [word for flag, value in flags if value is not None for word in (flag, value)]
    _become("proxy", *where, "snapshot", "show", *query)


# --- how a command ends -------------------------------------------------------------------------------------------


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
