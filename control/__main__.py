"""`python -m control`: the control plane as one process; settings from the environment, flags override."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

from control.app import LIMITS, build
from control.edges.process.data_directory import DataDirectory, DataDirectoryError
from control.edges.sql.database import SchemaTooNewError
from control.edges.telemetry.log_lines import log_to_stderr
from control.settings import Settings
from control.stopping import done_unless
from control.time_slices import spare_the_collector
from runtime.http_server import FrontRunner
from runtime.private_files import UMASK
from runtime.setting_names import warnings_of

log = logging.getLogger("control")


def main() -> int:
    try:
        flags = _flags()
        settings = Settings.from_environ(os.environ, **flags)
        log_to_stderr(settings.log_level)
        for warning in warnings_of(os.environ):
            log.warning("%s", warning)
        app = build(settings)
    except (ValueError, DataDirectoryError) as error:
        sys.stderr.write(f"tollgate control: {error}\n")
        return 2
    try:
        asyncio.run(_serve(app, settings))
    except OSError as error:
        sys.stderr.write(f"tollgate control: cannot listen on {settings.host}:{settings.port}: {error.strerror}\n")
        return 1
    except SchemaTooNewError as error:
        sys.stderr.write(f"tollgate control: {error}\n")
        return 1
    return 0


def _flags() -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="tollgate control", description="Tollgate's control plane.")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--control-port", dest="port", type=int, help="port to listen on (default 8081)")
    parser.add_argument("--data", type=Path, help="where SQLite is when no database is named (default ./.tollgate)")
    parser.add_argument("--database-url", help="default: TOLLGATE_DATABASE_URL, else SQLite in --data")
    parser.add_argument("--redis-url", help="default: TOLLGATE_REDIS_URL")
    flags = vars(parser.parse_args())
    data = flags.pop("data")
    if data is not None and flags["database_url"] is None and not os.environ.get("TOLLGATE_DATABASE_URL"):
        directory = DataDirectory(data)
        directory.make()
        flags["database_url"] = directory.database_url
    return flags


async def _serve(app: web.Application, settings: Settings) -> None:
    """Listen until SIGTERM or SIGINT, then let the requests in flight end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner = FrontRunner(app, LIMITS, shutdown_timeout=settings.drain_timeout_s)
    try:
        if await done_unless(stop, runner.setup()):
            await web.TCPSite(runner, settings.host, settings.port).start()
            log.info("listening on %s", [site.name for site in runner.sites])
            spare_the_collector()
            await stop.wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    os.umask(UMASK)
    sys.exit(main())
