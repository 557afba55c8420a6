"""The command line of `tollgate launcher`: reads flags and the key, runs the launcher, ends with its status."""

import asyncio
import os
from typing import Any

import click

from launcher.options import DEFAULT_IDLE_TIMEOUT_S, DEFAULT_MAX_REPLICAS, DEFAULT_START_TIMEOUT_S, Options
from runtime.environment import Environment, SettingsError, http_url
from runtime.tls.pinned import peer_tls

_SECONDS = click.FloatRange(0, min_open=True)


def _url(_context: click.Context, _option: click.Parameter, text: str) -> str:
    try:
        return http_url(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _path(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    if text is not None and not text.startswith("/"):
        raise click.BadParameter("expected a path that begins with /")
    return text


@click.command()
@click.option("--url", required=True, callback=_url, help="The management API, such as http://127.0.0.1:8081.")
@click.option("--model", "model_id", required=True, help="The model's id.")
@click.option("--deployment", "deployment_id", required=True, help="The deployment's id.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The wake hook's port; 0 picks a free one.")
@click.option("--host", help="The address of hook and replicas; by default this machine's on the route to --url.")
@click.option("--max-replicas", type=click.IntRange(1, 256), default=DEFAULT_MAX_REPLICAS, show_default=True)
@click.option(
    "--idle-timeout-s",
    type=_SECONDS,
    default=DEFAULT_IDLE_TIMEOUT_S,
    show_default=True,
    help="A replica that the load has done without for this long is stopped, the last one too.",
)
@click.option(
    "--start-timeout-s",
    type=_SECONDS,
    default=DEFAULT_START_TIMEOUT_S,
    show_default=True,
    help="A replica that is not healthy after this long is killed and counts as a failed start.",
)
@click.option(
    "--health",
    callback=_path,
    metavar="PATH",
    help="The replicas' health path, which becomes the deployment's. Without it, the deployment's own.",
)
@click.option("--drain-timeout", envvar="TOLLGATE_DRAIN_TIMEOUT_S", type=click.FloatRange(0), default=25.0, hidden=True)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def launcher(drain_timeout: float, **flags: Any) -> None:
    """Start, watch and stop the replicas of one deployment on this machine.

    COMMAND is the model server, after `--`; {port} in it becomes a free port. The key, of type WORKSPACE_MANAGE_ALL,
    comes from TOLLGATE_API_KEY.
    """
    from launcher.app import LauncherError, run

    api_key = os.environ.get("TOLLGATE_API_KEY", "").strip()  # no flag: others can read a command line
    if not api_key:
        raise click.UsageError("TOLLGATE_API_KEY is not set: a key of type WORKSPACE_MANAGE_ALL is needed")
    try:
        tls = peer_tls(Environment(os.environ), "TOLLGATE_CONTROL_CERT_FILE")
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    options = Options(api_key=api_key, drain_timeout_s=drain_timeout, tls=tls, **flags)
    try:
        asyncio.run(run(options, _say, click.echo))
    except LauncherError as error:
        raise click.ClickException(str(error)) from error


def _say(text: str) -> None:
    click.echo(f"tollgate launcher: {text}", err=True)
