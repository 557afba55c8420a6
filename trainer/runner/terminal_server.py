"""The socket of a node on which the trainer asks for shells. Each shell has a process of its own below the runner.

See docs/reference/training.md#interactive-sessions.
"""

import json
import os
import signal
import socket
import time
from collections.abc import Callable

from trainer.runner.commands import Preparation, die_with_parent, reset_signals
from trainer.runner.launch import Launch

FILE_NAME = "runner.sock"
_MAX_REQUEST_BYTES = 4096
_REQUEST_TIMEOUT_S = 5.0
ASK_TERMINAL = b'{"do": "terminal"}\n'


class TerminalServer:
    """Listens in the current directory, because a path may be too long for a socket. Only its owner may connect."""

    def __init__(self) -> None:
        before = os.umask(0o177)
        try:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(FILE_NAME)
        finally:
            os.umask(before)
        self._listener.listen(16)
        self._listener.setblocking(False)

    def fileno(self) -> int:
        return self._listener.fileno()

    def accept(self, serve: Callable[[socket.socket], None]) -> None:
        """Take one connection and serve it in a new process."""
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it was closed meanwhile, or there are too many open files
            return
        with connection:
            try:
                pid = os.fork()
            except OSError:  # no more processes: the trainer sees the connection close
                return
            if pid == 0:
                try:
                    self._listener.close()
                    _serve(connection, serve)
                finally:
                    os._exit(0)

    def close(self) -> None:
        self._listener.close()
        os.unlink(FILE_NAME)


def shell_server(launch: Launch, prepare: Preparation) -> Callable[[socket.socket], None]:
    """Serves a shell as the job's commands run: user, limits, environment and working directory."""

    def serve(connection: socket.socket) -> None:
        from trainer.runner import terminal  # few nodes ever need it

        owner = None if launch.owner is None else (launch.owner[0], launch.owner[1])
        settings = terminal.ShellSettings(launch.working_directory, launch.environment, prepare, owner)
        terminal.serve(connection, settings)

    return serve


def _serve(connection: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    """Read the request, then serve, in the new process."""
    die_with_parent()
    reset_signals()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    connection.setblocking(True)
    if _request(connection) == {"do": "terminal"}:
        serve(connection)


def _request(connection: socket.socket) -> object:
    """The first line, as JSON; None if it is none. Reads no byte beyond it: what follows is the shell's."""
    give_up_at = time.monotonic() + _REQUEST_TIMEOUT_S
    line = b""
    while not line.endswith(b"\n") and len(line) < _MAX_REQUEST_BYTES:
        connection.settimeout(max(0.01, give_up_at - time.monotonic()))
        try:
            byte = connection.recv(1)
        except OSError:
            return None
        if not byte:
            return None
        line += byte
    connection.settimeout(None)
    try:
        return json.loads(line)
    except ValueError:
        return None
