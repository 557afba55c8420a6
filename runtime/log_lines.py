"""A process's log: JSON lines on standard error, in the schema of all processes (`runtime/log_schema.py`)."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable

from runtime.log_schema import log_line

START_S = 10.0
"""The time that parts of the product which start at the same time are silent about each other."""


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return log_line(record)


def log_to_stderr(level: str, quiet: Iterable[str] = ()) -> None:
    """Send this process's logging from `level` on to standard error; the loggers in `quiet` from WARNING on."""
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(_JsonFormatter())
    logging.basicConfig(level=level, handlers=[out])
    for name in quiet:
        logging.getLogger(name).setLevel(logging.WARNING)


def cause_of(error: BaseException) -> str:
    """The first line of an error's text; its class if it has none, as time-outs and closed connections often have."""
    return str(error).partition("\n")[0] or type(error).__name__


def log_uncaught() -> None:
    """Write what nothing catches as log lines too: exceptions of threads and finalizers, and warnings.

    Straight to standard error: the handlers may be closed by then.
    """
    sys.excepthook = lambda _kind, error, _trace: _write_uncaught("The process ends by an uncaught exception", error)
    threading.excepthook = lambda failure: _write_uncaught("A thread ended by an uncaught exception", failure.exc_value)
    sys.unraisablehook = lambda failure: _write_uncaught(
        failure.err_msg or "An exception was ignored", failure.exc_value
    )
    logging.captureWarnings(True)


def _write_uncaught(message: str, error: BaseException | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        return
    trace = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord(
        "runtime.log_lines", logging.ERROR, "", 0, f"{message} ({error!r}). Please report this bug.", (), trace
    )
    sys.stderr.write(log_line(record) + "\n")


class OutageLog:
    """Logs an outage when it begins, when its cause changes and when it ends, instead of once per failed try.

    `silent_s`: what is away from the start may be starting too, so that is logged if it lasts so long.
    """

    def __init__(self, log: logging.Logger, silent_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._silent_until = clock() + silent_s
        self.cause = ""
        """The message of the current outage; "" if there is none."""

    def begins(self, message: str) -> None:
        """Call this on every failure. `message`: cause, consequence, remedy."""
        if message != self.cause and self._clock() >= self._silent_until:
            self.cause = message
            self._log.warning("%s", message)

    def ends(self, message: str) -> None:
        """Call this on every success."""
        self._silent_until = float("-inf")
        if self.cause:
            self.cause = ""
            self._log.info("%s", message)


class PacedLog:
    """Logs a warning that may be due many times a second at most once every `interval_s`, and counts the others."""

    def __init__(
        self, log: logging.Logger, interval_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._interval_s = interval_s
        self._clock = clock
        self._next_at = float("-inf")
        self._silent = 0

    def warning(self, message: str) -> None:
        """Call this each time. `message`: cause, consequence, remedy."""
        now = self._clock()
        if now < self._next_at:
            self._silent += 1
            return
        since = f" There were {self._silent} more since the last such line." if self._silent else ""
        self._next_at = now + self._interval_s
        self._silent = 0
        self._log.warning("%s%s", message, since)
