"""`tollgate control`: the control plane as one process. Settings come from the environment; flags override them."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import click
from aiohttp import web

from control.app import LIMITS, build
from control.edges.process.data_directory import DataDirectory, DataDirectoryError
from control.edges.sql.migrations.migrate import SchemaTooNewError
from control.full_collections import defer_full_collections
from control.long_work import let_the_loop_go_first
from control.settings import Settings
from control.stopping import done_unless
from runtime.background import running
from runtime.http.listening import listen
from runtime.http.server import FrontRunner
from runtime.http.tls_layer import TlsListener
from runtime.log_lines import log_to_stderr, log_uncaught
from runtime.setting_names import warnings_of
from runtime.tls.files import CertificateFiles

log = logging.getLogger("control")
_FLAGS = {
    "host": "TOLLGATE_CONTROL_HOST",
    "control_port": "TOLLGATE_CONTROL_PORT",
    "database_url": "TOLLGATE_DATABASE_URL",
    "redis_url": "TOLLGATE_REDIS_URL",
}
"""The setting that each flag overrides."""
_QUIET = ("alembic", "aiosqlite")
"""The loggers that log warnings only. Below that, aiosqlite logs parameters of statements, which hold secrets."""


@click.command("tollgate control", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--host", help="Address to listen on (default 127.0.0.1).")
@click.option("--control-port", type=click.IntRange(0, 65535), help="Port to listen on (default 8081).")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the SQLite database, if no database URL is given (default ./.tollgate).",
)
@click.option("--database-url", help="Default: TOLLGATE_DATABASE_URL, else SQLite in --data.")
@click.option("--redis-url", help="Default: TOLLGATE_REDIS_URL.")
def main(data: Path | None, **flags: Any) -> None:
    """Tollgate's control plane. Settings: TOLLGATE_* (see docs/reference/settings.md); flags override."""
    try:
        settings = Settings.from_environ(_environ_with(data, flags))
        log_to_stderr(settings.log_level, _QUIET)
        log_uncaught()
        for warning in warnings_of(os.environ):
            log.warning("%s", warning)
        app = build(settings)
    except (ValueError, DataDirectoryError) as error:
        _fail(str(error), 2)
    try:
        asyncio.run(_serve(app, settings))
    except OSError as error:
        _fail(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}", 1)
    except SchemaTooNewError as error:
        _fail(str(error), 1)


def _environ_with(data: Path | None, flags: Mapping[str, Any]) -> dict[str, str]:
    """The environment, overridden by the flags."""
    overrides = {_FLAGS[name]: str(value) for name, value in flags.items() if value is not None}
    environ = os.environ | overrides
    if data is not None and not environ.get("TOLLGATE_DATABASE_URL"):
        directory = DataDirectory(data)
        directory.make()
        environ["TOLLGATE_DATABASE_URL"] = directory.database_url
    return environ


def _fail(message: str, status: int) -> NoReturn:
    click.echo(f"tollgate control: {message}", err=True)
    sys.exit(status)


async def _serve(app: web.Application, settings: Settings) -> None:
    """Listen until SIGTERM or SIGINT, then wait for the requests in flight."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    files = settings.tls
    tls = None if files is None else TlsListener(files.pair.context(), LIMITS.code_member)
    runner = FrontRunner(app, LIMITS, tls, shutdown_timeout=settings.drain_timeout_s)
    try:
        if await done_unless(stop, runner.setup()):
            await listen(runner, settings.host, settings.port)
            sites = ", ".join(site.name for site in runner.sites)
            until = "" if files is None else f" with TLS (certificate valid until {files.valid_until})"
            log.info("Control listens on %s%s.", sites, until)
            defer_full_collections()
            let_the_loop_go_first()
            async with following(files, tls):
                await stop.wait()
    finally:
        await runner.cleanup()


@asynccontextmanager
async def following(files: CertificateFiles | None, tls: TlsListener | None) -> AsyncIterator[None]:
    """Show each new certificate of these files until the block ends."""
    if files is None or tls is None:
        yield
        return

    def renew() -> None:
        tls.context = files.pair.context()

    files.changed = renew
    async with running(files.follow):
        yield
