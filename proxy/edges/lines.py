"""Log lines to standard error: from a thread of their own, so that a slow terminal or pipe never holds up a request."""

import contextlib
import logging
import logging.handlers
import queue
import sys
from collections.abc import Iterator

FORMAT = "%(asctime)s %(levelname)s %(name)s[%(process)d] %(message)s"
MAX_QUEUED = 10_000
"""Lines that may wait for the thread; further ones are dropped rather than kept."""


class _DroppingHandler(logging.handlers.QueueHandler):
    """A full queue drops the line: logging must not take the memory that requests need."""

    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


@contextlib.contextmanager
def log_off_the_loop() -> Iterator[None]:
    """Within the block, all logging of this process goes to standard error through a queue and a thread."""
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(logging.Formatter(FORMAT))
    lines: queue.Queue[logging.LogRecord] = queue.Queue(MAX_QUEUED)
    handler = _DroppingHandler(lines)
    listener = logging.handlers.QueueListener(lines, out)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        listener.stop()
