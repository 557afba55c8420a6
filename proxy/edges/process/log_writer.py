"""Writes log lines as JSON to standard error in a thread, so that a slow terminal or pipe delays no request."""

import contextlib
import logging
import logging.handlers
import queue
import sys
from collections.abc import Iterator

from runtime.log_schema import DEFAULT_LEVEL, log_line

MAX_QUEUED = 10_000
"""The most lines that wait for the thread. Further ones are dropped."""


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return log_line(record)


class _DroppingHandler(logging.handlers.QueueHandler):
    """Drops a line when the queue is full: logging must not take the memory that requests need."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Render the message here, because its arguments may change later. The thread formats the rest."""
        record.msg = record.getMessage()
        record.args = None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


@contextlib.contextmanager
def log_off_the_loop(level: str = DEFAULT_LEVEL) -> Iterator[None]:
    """Write this process's log from `level` on to standard error within the block, through a queue and a thread."""
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(_JsonFormatter())
    lines: queue.Queue[logging.LogRecord] = queue.Queue(MAX_QUEUED)
    handler = _DroppingHandler(lines)
    listener = logging.handlers.QueueListener(lines, out)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level)
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        listener.stop()
