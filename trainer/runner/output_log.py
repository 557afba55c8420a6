"""A node's output on disk: lines `<epoch ns> <1|2> <text>`, masked, bounded, and never a reason for a job to fail.

See docs/reference/training.md#output.
"""

import os
import re
import time

from trainer.runner.masking import Masker, masked_forms

STDOUT = 1
STDERR = 2
FILE_NAME = "output.log"
MAX_LINE_BYTES = 65_536
"""The length above which lines are divided."""
MAX_LOG_BYTES = 256 * 1024 * 1024
"""The bound for one node. The rest of its output is dropped."""
_LINE_END = re.compile(rb"\r?\n|\r(?=[^\n])")  # a progress bar ends its lines with a carriage return
_CONTINUATION = 0b1100_0000, 0b1000_0000


class OutputLog:
    """Appends what a node prints. When the disk is full it drops lines and says so as soon as there is room."""

    def __init__(self, directory: str, secrets: list[str], max_bytes: int = MAX_LOG_BYTES) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(os.path.join(directory, FILE_NAME), flags, 0o600)
        self._bytes = os.fstat(self._file).st_size
        self._max_bytes = max_bytes
        forms = masked_forms(secrets)
        self._streams = {stream: _Lines(Masker(forms)) for stream in (STDOUT, STDERR)}
        self._last_ns = 0
        self._lost_lines = 0
        self._why_lost = ""
        self._is_full = False

    @property
    def loss(self) -> str | None:
        """Return what of the output was lost just now, and why; None if nothing was."""
        return f"{self._lost_lines} lines of output were lost: {self._why_lost}" if self._lost_lines else None

    def feed(self, stream: int, data: bytes) -> None:
        """Take what the node wrote to standard output or standard error."""
        if not self._is_full:
            self._write(stream, self._streams[stream].feed(data))

    def say(self, text: str, stream: int = STDERR) -> None:
        """Add a line of Tollgate's own."""
        self._write(stream, [f"Tollgate: {text}".encode()])

    def tell(self, text: str) -> None:
        """Add a line about what goes as it should."""
        self.say(text, STDOUT)

    def close(self) -> None:
        """Write what is left."""
        for stream, lines in self._streams.items():
            if not self._is_full:
                self._write(stream, lines.flush())
        if self._lost_lines:
            self._write(STDERR, [])
        os.close(self._file)

    def _write(self, stream: int, texts: list[bytes]) -> None:
        if self._is_full or not (texts or self._lost_lines):
            return
        lines = [self._line(stream, text) for text in texts]
        notes = [self._line(STDERR, f"Tollgate: {self.loss}".encode())] if self._lost_lines else []
        if self._bytes + sum(map(len, lines)) > self._max_bytes:
            self._is_full = True
            mib = self._max_bytes // (1024 * 1024)
            lines = [self._line(STDERR, f"Tollgate: the node printed {mib} MiB; the rest is not kept".encode())]
        if self._append(b"".join(notes + lines)):
            self._lost_lines = 0
        else:
            self._lost_lines += len(texts)

    def _line(self, stream: int, text: bytes) -> bytes:
        """Times grow by at least 1 ns, so that sorting by time keeps the order."""
        self._last_ns = max(self._last_ns + 1, time.time_ns())
        return b"%d %d %b\n" % (self._last_ns, stream, text.decode(errors="replace").encode())

    def _append(self, data: bytes) -> bool:
        """Append all of it or nothing."""
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            self._why_lost = error.strerror or "the disk refused them"
            os.ftruncate(self._file, self._bytes)
            return False
        self._bytes += len(data)
        return True


class _Lines:
    """One stream, cut into lines."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._open = b""

    def feed(self, data: bytes) -> list[bytes]:
        return self._cut(self._masker.feed(data))

    def flush(self) -> list[bytes]:
        lines = self._cut(self._masker.flush())
        rest = self._open.rstrip(b"\r")
        self._open = b""
        return [*lines, rest] if rest else lines

    def _cut(self, data: bytes) -> list[bytes]:
        *ended, self._open = _LINE_END.split(self._open + data)
        lines = [piece for line in ended for piece in _pieces(line)]
        if len(self._open) > MAX_LINE_BYTES:
            *pieces, self._open = _pieces(self._open)
            lines += pieces
        return lines


def _pieces(line: bytes) -> list[bytes]:
    """The line in pieces of at most MAX_LINE_BYTES, none of which divides a character of UTF-8."""
    pieces = list[bytes]()
    start = 0
    while len(line) - start > MAX_LINE_BYTES:
        end = start + MAX_LINE_BYTES
        while end > start + MAX_LINE_BYTES - 4 and line[end] & _CONTINUATION[0] == _CONTINUATION[1]:
            end -= 1
        pieces.append(line[start:end])
        start = end
    return [*pieces, line[start:]]
