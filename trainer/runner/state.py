"""The files of a runner for a trainer that comes later: who it is, and how the node ended.

See docs/reference/training.md#after-a-crash.
"""

import json
import os
from typing import NamedTuple

from trainer.runner.processes import boot_id, process
from trainer.runner.reserved_file import read

STATE_FILE = "state.json"
EXIT_FILE = "exit.json"


class RunnerState(NamedTuple):
    """The identity of a runner. `pid` 0: a trainer has claimed the node, and no runner will start."""

    pid: int
    start_ticks: int
    boot_id: str
    cgroup: str | None

    @classmethod
    def own(cls, cgroup: str | None) -> "RunnerState":
        """Return the identity of this process."""
        own = process(os.getpid())
        return cls(os.getpid(), own.start_ticks if own else 0, boot_id(), cgroup)

    @property
    def is_present(self) -> bool:
        """Return whether the process with this pid is that runner, be it as a zombie."""
        present = process(self.pid) if self.pid and self.boot_id == boot_id() else None
        return present is not None and present.start_ticks == self.start_ticks


NO_RUNNER = RunnerState(0, 0, "", None)
LOST_RUNNER = RunnerState(0, 0, "unknown", None)
"""A state that is there, but damaged."""


class Exit(NamedTuple):
    """The end of a node. `is_kept`: it has failed, but stays for interactive sessions."""

    status: int
    reason: str | None
    did_run: bool
    was_stopped: bool
    is_kept: bool
    at_ns: int


def claim(state: RunnerState, directory: str = ".") -> bool:
    """Become the one who has this node, once and for all; False if somebody else is."""
    draft = os.path.join(directory, f"{STATE_FILE}.{os.getpid()}")
    with open(draft, "w", encoding="utf-8") as file:
        json.dump(state._asdict(), file)
    try:
        os.link(draft, os.path.join(directory, STATE_FILE))
    except FileExistsError:
        return False
    finally:
        os.unlink(draft)
    return True


def read_state(directory: str) -> RunnerState | None:
    """Return who has this node; None if nobody yet."""
    path = os.path.join(directory, STATE_FILE)
    value = read(path)
    if value is None and not os.path.exists(path):
        return None
    try:
        state = RunnerState(**value or {})
    except TypeError:
        return LOST_RUNNER
    is_whole = _is_count(state.pid) and _is_count(state.start_ticks) and isinstance(state.cgroup, str | None)
    return state if is_whole else LOST_RUNNER


def read_exit(directory: str) -> Exit | None:
    """Return how the node ended; None if it has not, or nobody could write it down."""
    value = read(os.path.join(directory, EXIT_FILE))
    try:
        exit = None if value is None else Exit(**value)
    except TypeError:
        return None
    return exit if exit is not None and type(exit.status) is int and _is_count(exit.at_ns) else None


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
