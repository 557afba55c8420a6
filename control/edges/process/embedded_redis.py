"""The Redis that `tollgate up` runs as a child: a real redis-server on a unix socket, with an append-only file.

It is the counters' memory: nothing here may lose more than Redis itself would (`appendfsync everysec`), nor evict.
"""

import signal

from control.edges.process import redis_binary
from control.edges.process.data_directory import DataDirectory
from control.edges.process.redis_binary import RedisServer
from runtime.child_process import Child, Launch, replies_with

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


class EmbeddedRedis:
    """How to start, ask and stop the Redis of one data directory."""

    def __init__(self, directory: DataDirectory, server: RedisServer) -> None:
        self._directory = directory
        self._server = server
        self._socket = directory.redis_socket()

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    def launch(self, environment: dict[str, str], lock: int) -> Launch:
        """Deaf to the signals that a terminal sends to the whole group: Redis has to outlive the proxy's drain."""
        places = ("--unixsocket", str(self._socket), "--dir", str(self._directory.path))
        log = ("--logfile", str(self._directory.redis_log))
        flags = [word for flag in _FLAGS for word in flag]
        argv = [self._server.path, *places, *log, *flags]
        redis_binary.pin(self._directory.path, self._server)
        return Launch(argv, environment, (lock,), _TERMINAL_SIGNALS)

    async def is_ready(self) -> bool:
        """PONG; not while it loads its append-only file."""
        return await replies_with(self._socket, b"PING\r\n", b"+PONG")

    async def stop(self, child: Child) -> None:
        """SHUTDOWN writes and syncs the append-only file. A Redis that takes longer is waited for by the caller."""
        await replies_with(self._socket, b"SHUTDOWN\r\n", b"")
