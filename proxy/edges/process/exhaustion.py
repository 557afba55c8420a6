"""Shortages of descriptors and memory: logged once a second with the limit and the remedy, shown by `/readyz`."""

import errno
import logging
import time

from runtime.exhaustion import descriptor_limit, is_out_of_memory, memory_limit, no_descriptor_is_left

LOG_INTERVAL_S = 1.0
LASTS_S = 6.0
"""How long a shortage is told after it was met last: the supervisor looks every 5 s."""
log = logging.getLogger(__name__)


class Exhaustion:
    """Told of everything that is not done because the process or the machine has run out of something.

    `consequence`: what becomes of it, in the log.
    """

    def __init__(self, consequence: str = "calls were answered 529 CAPACITY_EXHAUSTED") -> None:
        self._consequence = consequence
        self._trouble = ""
        self._lasts_until = 0.0
        self._unlogged = 0
        self._not_before = 0.0

    def note(self, error: BaseException) -> None:
        """Log the shortage, at most once per `LOG_INTERVAL_S`."""
        now = time.monotonic()
        self._trouble = _described(error)
        self._lasts_until = now + LASTS_S
        self._unlogged += 1
        if now < self._not_before:
            return
        log.error("%s Since the last such line %d %s.", self._trouble, self._unlogged, self._consequence)
        self._unlogged = 0
        self._not_before = now + LOG_INTERVAL_S

    @property
    def trouble(self) -> str:
        """The text for `/readyz`; "" if nothing is short."""
        if time.monotonic() < self._lasts_until:
            return self._trouble
        return _no_descriptor() if no_descriptor_is_left() else ""


def _described(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENFILE:
        return (
            "Out of file descriptors: the whole machine has none left. Raise fs.file-max, or find the process that"
            " holds them."
        )
    return _no_memory() if is_out_of_memory(error) else _no_descriptor()


def _no_descriptor() -> str:
    return (
        f"Out of file descriptors: the limit of this process is {descriptor_limit()}. Raise it: `ulimit -n`,"
        " LimitNOFILE= of a systemd unit, `ulimits: nofile` of a container."
    )


def _no_memory() -> str:
    limit = memory_limit()
    bound = "the machine has none left" if limit is None else f"the limit of this process is {limit} bytes"
    return (
        f"Out of memory: {bound}. Raise `ulimit -v` or the machine's memory, or lower TOLLGATE_MAX_HELD_BYTES and"
        " TOLLGATE_MAX_IN_FLIGHT."
    )
