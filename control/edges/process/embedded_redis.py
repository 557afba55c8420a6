"""The Redis that `tollgate up` runs as a child: a real redis-server on a unix socket, with an append-only file.

It stores the counters. It may lose at most what `appendfsync everysec` allows, and must never evict.
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
    """Starts, probes and stops the Redis of one data directory."""

    def __init__(self, directory: DataDirectory, server: RedisServer) -> None:
        self._directory = directory
        self._server = server
        self._socket = directory.redis_socket()

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    def launch(self, environment: dict[str, str], lock: int) -> Launch:
        """Blocks the signals that a terminal sends to the whole group: Redis has to outlive the proxy's drain."""
        paths = ("--unixsocket", str(self._socket), "--dir", str(self._directory.path))
        log = ("--logfile", str(self._directory.redis_log))
        flags = [word for flag in _FLAGS for word in flag]
        argv = [self._server.path, *paths, *log, *flags]
        redis_binary.pin(self._directory.path, self._server)
        return Launch(argv, environment, (lock,), _TERMINAL_SIGNALS)

    async def is_ready(self) -> bool:
        """Return whether Redis answers PING with PONG. It does not while it loads its append-only file."""
        return await replies_with(self._socket, b"PING\r\n", b"+PONG")

    async def stop(self, child: Child) -> None:
        """Send SHUTDOWN, which writes and syncs the append-only file. The caller waits for the process to end."""
        await replies_with(self._socket, b"SHUTDOWN\r\n", b"")
