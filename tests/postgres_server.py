"""A private PostgreSQL for tests: a cluster in a temporary directory, on a unix socket, removed afterwards.

Its binaries refuse to run as root, so for root they run as `postgres` or `nobody`. If they are not installed,
`find_binaries` returns None and the tests skip.
"""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

MISSING = "no PostgreSQL binaries (Debian: apt-get install postgresql)"
START_TIMEOUT_S = 60
_ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
_SPEED = ("fsync=off", "full_page_writes=off", "max_connections=60", "shared_buffers=64MB", "autovacuum=off")


def find_binaries() -> Path | None:
    """The directory with initdb and postgres of the newest installed version; None if there is none."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if binaries:
        return binaries[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


@dataclass
class PostgresServer:
    """A running server. `stop` and `start` are for tests of outages."""

    binaries: Path
    directory: Path
    process: "subprocess.Popen[bytes] | None" = None

    def url(self, database: str) -> str:
        return f"postgresql+asyncpg://tollgate@/{database}?host={self.directory}"

    def start(self) -> None:
        """Start it as a child, not as a daemon, so that it does not outlive a killed test run."""
        command: list[str | Path] = [self.binaries / "postgres", "-D", self.directory / "data", "-k", self.directory]
        for setting in ("listen_addresses=", *_SPEED):
            command += ["-c", setting]
        with (self.directory / "log").open("ab") as log:
            self.process = server = subprocess.Popen(
                command,
                cwd="/tmp",
                env=_ENVIRONMENT,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  (one system call, no lock)
                **_identity(),
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        ready: list[str | Path] = [self.binaries / "pg_isready", "-q", "-h", self.directory]
        while subprocess.run(ready, check=False).returncode != 0:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {(self.directory / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop at once, as in a crash."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(START_TIMEOUT_S)

    def tool(self, name: str, *words: str | Path) -> None:
        """Run a client program of this server's version, such as `pg_dump`."""
        subprocess.run([self.binaries / name, "-h", self.directory, "-U", "tollgate", *words], check=True, timeout=60)

    async def create_database(self, name: str, template: str = "template1") -> str:
        """Create a database as a copy of `template`, by default empty. Return its URL."""
        await self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    async def drop_database(self, name: str) -> None:
        """Drop a database, and close the connections to it."""
        await self._execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    @asynccontextmanager
    async def connection(self, database: str) -> AsyncIterator[Any]:
        """A connection of asyncpg's."""
        connection = await asyncpg.connect(host=str(self.directory), user="tollgate", database=database)
        try:
            yield connection
        finally:
            await connection.close()

    async def _execute(self, statement: str) -> None:
        async with self.connection("postgres") as connection:
            await connection.execute(statement)


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    binaries = find_binaries()
    if binaries is None:
        raise FileNotFoundError(MISSING)
    # Not pytest's tmp_path: a unix socket's path has at most 107 characters, and other users cannot enter root's
    # directories.
    directory = Path(tempfile.mkdtemp(prefix="tollgate-pg-", dir="/tmp"))
    user = _server_user()
    if user is not None:
        os.chown(directory, user.pw_uid, user.pw_gid)
    server = PostgresServer(binaries, directory)
    try:
        _as_server_user([binaries / "initdb", "-D", directory / "data", "-U", "tollgate", "-A", "trust", "-N"])
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _server_user() -> pwd.struct_passwd | None:
    """The user that the server runs as; None for the current user."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("no unprivileged user to run PostgreSQL as")


def _identity() -> dict[str, Any]:
    user = _server_user()
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user is not None else {}


def _die_with_parent() -> None:
    """Linux: ask for SIGQUIT when the test run ends. Must follow the change of user, which resets this request."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)


def _as_server_user(command: list[str | Path]) -> None:
    result = subprocess.run(
        command, check=False, cwd="/tmp", env=_ENVIRONMENT, capture_output=True, timeout=START_TIMEOUT_S, **_identity()
    )
    if result.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {result.returncode}: {result.stderr.decode()[-2000:]}")
