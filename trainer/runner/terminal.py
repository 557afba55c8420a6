"""A shell in a pseudo-terminal, for one connection to the runner. Standard library only.

Both sides send frames: a byte for the kind, the payload's length as four bytes (big-endian), the payload. `D`: what was
typed, or what the shell wrote. `R`, to the shell: columns and rows, two bytes each. `E`: the end, no payload. The shell
ends when the connection does, or breaks these rules.

See docs/reference/training.md#interactive-sessions.
"""

import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

DATA = b"D"
RESIZE = b"R"
END = b"E"
MAX_PAYLOAD_BYTES = 65_536
_HEAD = struct.Struct(">cI")
_SIZE = struct.Struct(">HH")
_CHUNK_BYTES = 32_768
_HELD_BYTES = 65_536
"""The bytes of either direction that are held here. A faster sender has to wait."""
_LOOK_MS = 200
"""The interval of looks whether the shell has exited: a process in its background may keep the terminal open."""
_HANGUP_GRACE_S = 1.0
_LAST_WORDS_S = 1.0
_OF_TERMINALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
"""A shell and its commands would go on ignoring what this process was started to ignore, Ctrl-C for one."""
_SHELLS = ("/bin/bash", "/bin/sh")


class FrameError(ValueError):
    """The bytes are not frames of a terminal."""


@dataclass(frozen=True, slots=True)
class ShellSettings:
    """The settings of a shell. `prepare` runs in the new process before the shell does: limits, cgroup, user.

    `owner`: the user and group that the terminal belongs to; None: those of this process.
    """

    directory: str
    environment: Mapping[str, str] = field(repr=False)
    prepare: Callable[[], None] = lambda: None
    owner: tuple[int, int] | None = None


class Frames:
    """The frames of a stream of bytes. Holds at most one incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The frames that are complete with these bytes: (kind, payload). Raises FrameError."""
        self._buffer += received
        while len(self._buffer) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._buffer)
            if kind not in (DATA, RESIZE, END) or length > MAX_PAYLOAD_BYTES:
                raise FrameError("no frame of a terminal")
            if len(self._buffer) < _HEAD.size + length:
                return
            payload = bytes(self._buffer[_HEAD.size : _HEAD.size + length])
            del self._buffer[: _HEAD.size + length]
            yield kind, payload


def frames_of(data: bytes) -> bytes:
    """The data as frames."""
    pieces = (data[start : start + MAX_PAYLOAD_BYTES] for start in range(0, len(data), MAX_PAYLOAD_BYTES))
    return b"".join(_HEAD.pack(DATA, len(piece)) + piece for piece in pieces)


def resize_frame(columns: int, rows: int) -> bytes:
    return _HEAD.pack(RESIZE, _SIZE.size) + _SIZE.pack(columns, rows)


def end_frame() -> bytes:
    return _HEAD.pack(END, 0)


def serve(connection: socket.socket, settings: ShellSettings) -> None:
    """Run a shell until it exits or the connection closes, then end what is left of it. Closes the connection.

    Blocks: call it in a child process that has no other threads.
    """
    with connection:
        try:
            master, shell = _start(settings)
        except (OSError, subprocess.SubprocessError) as error:
            with suppress(OSError):
                connection.sendall(frames_of(f"The shell could not be started: {error}\r\n".encode()) + end_frame())
            return
        try:
            _Relay(connection, master, shell).run()
        finally:
            _end(master, shell)


def _start(settings: ShellSettings) -> tuple[int, "subprocess.Popen[bytes]"]:
    master, slave = os.openpty()
    try:
        if settings.owner is not None:
            os.fchown(slave, *settings.owner)

        def prepare() -> None:
            for number in _OF_TERMINALS:
                signal.signal(number, signal.SIG_DFL)
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            settings.prepare()

        path = next((path for path in _SHELLS if os.access(path, os.X_OK)), _SHELLS[-1])
        shell = subprocess.Popen(
            [path, "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=settings.directory,
            env={**settings.environment, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509  (`serve` asks for a process of its own)
        )
    except BaseException:
        os.close(master)
        raise
    finally:
        os.close(slave)
    return master, shell


def _end(master: int, shell: "subprocess.Popen[bytes]") -> None:
    """Hang up, as a closed terminal window does; kill the shell and its foreground if they ignore it."""
    groups = {shell.pid}
    with suppress(OSError):
        groups.add(os.tcgetpgrp(master))
    os.close(master)
    if shell.poll() is None:
        with suppress(OSError):
            os.killpg(shell.pid, signal.SIGHUP)
        with suppress(subprocess.TimeoutExpired):
            shell.wait(_HANGUP_GRACE_S)
    for group in groups - {0}:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    shell.wait()


class _Relay:
    """Moves bytes between the connection and the terminal until one of them ends. Holds little: see `_HELD_BYTES`."""

    def __init__(self, connection: socket.socket, master: int, shell: "subprocess.Popen[bytes]") -> None:
        self._connection = connection
        self._master = master
        self._shell = shell
        self._frames = Frames()
        self._typed = bytearray()
        self._output = bytearray()
        self._is_open = True
        self._has_hung_up = False
        """No process has the terminal open any more, and all that they wrote is read."""
        self._give_up_at = float("inf")
        """The time at which to stop waiting for what processes in the background of an ended shell write."""
        connection.setblocking(False)
        os.set_blocking(master, False)

    def run(self) -> None:
        while self._is_open and time.monotonic() < self._give_up_at:
            ready = dict(self._poller().poll(_LOOK_MS))
            has_exited = self._shell.poll() is not None  # before reading: what it wrote last is there by now
            self._receive(ready.get(self._connection.fileno(), 0))
            self._type()
            is_silent = not self._read(ready.get(self._master, 0))
            self._send()
            if has_exited:
                self._give_up_at = min(self._give_up_at, time.monotonic() + _LAST_WORDS_S)
            if not self._output and (self._has_hung_up or (has_exited and is_silent)):
                break
        with suppress(OSError):
            self._connection.send(end_frame())

    def _poller(self) -> "select.poll":
        poller = select.poll()
        takes = select.POLLIN if len(self._typed) < _HELD_BYTES else 0
        poller.register(self._connection, takes | (select.POLLOUT if self._output else 0))
        events = select.POLLIN if len(self._output) < _HELD_BYTES else 0
        events |= select.POLLOUT if self._typed else 0
        if events and not self._has_hung_up:  # else a hang-up would end each wait at once
            poller.register(self._master, events)
        return poller

    def _receive(self, happened: int) -> None:
        if not happened & select.POLLIN:
            self._is_open = not happened & (select.POLLHUP | select.POLLERR)
            return
        try:
            received = self._connection.recv(_CHUNK_BYTES)
            self._is_open = bool(received) and all(self._handle_frame(*frame) for frame in self._frames.feed(received))
        except BlockingIOError:
            return
        except (OSError, FrameError, struct.error):
            self._is_open = False

    def _handle_frame(self, kind: bytes, payload: bytes) -> bool:
        """Take input; return whether the terminal goes on."""
        if kind == RESIZE:
            columns, rows = _SIZE.unpack(payload)
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._typed += payload if kind == DATA else b""
        return kind != END

    def _type(self) -> None:
        if self._typed:
            try:
                del self._typed[: os.write(self._master, self._typed[:_CHUNK_BYTES])]
            except BlockingIOError:
                return
            except OSError:  # nobody reads this terminal any more
                self._typed.clear()

    def _read(self, happened: int) -> bool:
        """Read output; return whether there was some."""
        if happened & select.POLLIN:
            with suppress(OSError):
                self._output += frames_of(os.read(self._master, _CHUNK_BYTES))
            return True
        self._has_hung_up |= bool(happened & select.POLLHUP) and not self._output
        return False

    def _send(self) -> None:
        if self._output:
            try:
                del self._output[: self._connection.send(self._output)]
            except BlockingIOError:
                return
            except OSError:
                self._is_open = False
