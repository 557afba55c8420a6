"""Log lines from what a replica prints: cut at line ends, bounded in length and rate, with a guessed level. Pure."""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

MAX_LINE_CHARS = 4000
LINES_PER_S = 1000
"""The lines of each replica. Further lines of the same second are counted, not kept: a flood costs little CPU."""
MAX_BATCH_LINES = 500
MAX_BATCH_CHARS = 300_000
"""Control accepts a body of 1 MiB; JSON may need several bytes for a character."""
MAX_HELD_LINES = 10_000
MAX_HELD_CHARS = 8_000_000
INFO = "INFO"
WARNING = "WARNING"
ERROR = "ERROR"
DEBUG = "DEBUG"
_LINE_END = re.compile(rb"\r\n|\n|\r")  # a progress bar ends its lines with a carriage return
_NAMED = re.compile(
    r"""(?:^|[\s\[(|<"'=:])(CRITICAL|FATAL|ERROR|WARNING|WARN|INFO|NOTICE|DEBUG|TRACE)(?=[\])>\s:|"',]|$)"""
)
_PREFIX = re.compile(r"(critical|fatal|error|warning|warn|info|debug|trace)(?:\[[\w.]+\])?:", re.IGNORECASE)
_JSON = re.compile(
    r'"(?:level|levelname|severity)": ?"(critical|fatal|error|warning|warn|info|debug|trace)"', re.IGNORECASE
)
_TRACEBACK = "Traceback (most recent call last):"
_LEVELS = {"CRITICAL": ERROR, "FATAL": ERROR, "ERROR": ERROR, "WARNING": WARNING, "WARN": WARNING}
_LEVELS |= {"INFO": INFO, "NOTICE": INFO, "DEBUG": DEBUG, "TRACE": DEBUG}
_WITHIN_CHARS = 80


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line for the deployment's log. `replica`: its base URL; None for lines of the launcher itself."""

    timestamp_ns: int
    level: str
    message: str
    replica: str | None = None

    def to_json(self) -> dict[str, str | None]:
        """Return the line as `POST …/logs/append` expects it."""
        return {
            "timestamp": str(self.timestamp_ns),
            "level": self.level,
            "message": self.message,
            "replica": self.replica,
            "request_id": None,
        }


def guess_level(text: str) -> str:
    """The level that the line names near its beginning, in capitals or as a prefix with a colon; otherwise INFO.

    Standard error is no sign of an error: most servers write all their lines there.
    """
    if text.startswith(_TRACEBACK):
        return ERROR
    start = text[:_WITHIN_CHARS]
    level_match = _PREFIX.match(start.lstrip()) or _NAMED.search(start) or (text[:1] == "{" and _JSON.search(text))
    return _LEVELS[level_match.group(1).upper()] if level_match else INFO


class LineCutter:
    """Cuts one replica's output into lines of at most MAX_LINE_CHARS; the rest of a longer one is left out."""

    def __init__(self) -> None:
        self._open = bytearray()
        self._second = -1
        self._lines_in_second = 0
        self._left_out = 0

    def feed(self, data: bytes, now: float) -> list[str]:
        """The lines that these bytes end."""
        if int(now) != self._second:
            self._second = int(now)
            self._lines_in_second = 0
        if self._lines_in_second >= LINES_PER_S:
            return self._skip(data)
        *ended, rest = _LINE_END.split(bytes(self._open[: 4 * MAX_LINE_CHARS]) + data)
        self._open[:] = rest[: 4 * MAX_LINE_CHARS]
        batch = ended[: LINES_PER_S - self._lines_in_second]
        self._lines_in_second += len(batch)
        lines = [*self._loss_notes(), *(text for line in batch if (text := _text(line)))]
        self._left_out += len(ended) - len(batch)
        return lines

    def flush(self) -> list[str]:
        """Return what is left when the output has ended."""
        rest = bytes(self._open)
        self._open[:] = b""
        return [*self._loss_notes(), *([text] if (text := _text(rest)) else [])]

    def _skip(self, data: bytes) -> list[str]:
        self._left_out += data.count(b"\n")
        self._open[:] = data.rpartition(b"\n")[2][: 4 * MAX_LINE_CHARS]
        return []

    def _loss_notes(self) -> Iterator[str]:
        if self._left_out:
            yield f"WARNING: {self._left_out} lines left out: more than {LINES_PER_S} in a second"
            self._left_out = 0


def _text(line: bytes) -> str:
    """Remove what a database or a terminal could stumble over."""
    text = line.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}").rstrip()
    return text if len(text) <= MAX_LINE_CHARS else text[: MAX_LINE_CHARS - 1] + "…"


class LineBuffer:
    """Lines that wait for control, oldest first. When it is full the oldest are dropped and counted."""

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        self._lines: deque[LogLine] = deque()
        self._chars = 0
        self._secrets = secrets
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, line: LogLine) -> None:
        """Append a line, with the launcher's own secrets masked."""
        message = line.message
        for secret in self._secrets:
            message = message.replace(secret, "***")
        self._lines.append(LogLine(line.timestamp_ns, line.level, message, line.replica))
        self._chars += len(message)
        while len(self._lines) > MAX_HELD_LINES or self._chars > MAX_HELD_CHARS:
            self._chars -= len(self._lines.popleft().message)
            self.dropped += 1

    def first(self) -> list[LogLine]:
        """The next batch; it stays in the buffer until `remove`."""
        batch: list[LogLine] = []
        chars = 0
        for line in self._lines:
            chars += len(line.message)
            if len(batch) == MAX_BATCH_LINES or (batch and chars > MAX_BATCH_CHARS):
                break
            batch.append(line)
        return batch

    def remove(self, batch: list[LogLine]) -> None:
        """Remove the lines of a batch that are still there; some may have been dropped meanwhile."""
        ids = {id(line) for line in batch}
        while self._lines and id(self._lines[0]) in ids:
            self._chars -= len(self._lines.popleft().message)
