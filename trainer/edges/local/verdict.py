"""The end of an attempt, by the ends of its nodes. Pure.

See docs/reference/training.md#how-a-job-ends.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from policy.training.statuses import Outcome
from trainer.runner.state import Exit


@dataclass(frozen=True, slots=True)
class End:
    """The end of an attempt, for control."""

    outcome: Outcome
    error_message: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"outcome": self.outcome.value, "error_message": self.error_message}

    @classmethod
    def from_json(cls, value: dict[str, Any] | None) -> "End | None":
        """None if it is damaged, or was never written down."""
        try:
            return None if value is None else cls(Outcome(value["outcome"]), value["error_message"])
        except (KeyError, ValueError):
            return None


def verdict(exits: Sequence[Exit | None], stop: End | None) -> End:
    """`exits`: of each node by rank; None: its runner was killed. `stop`: what was asked for, if a stop was.

    A node that failed on its own decides, the first of several. Then a stop. Then a runner that was killed.
    """
    failed = [(exit.at_ns, rank) for rank, exit in enumerate(exits) if exit is not None and has_failed(exit)]
    if failed:
        rank = min(failed)[1]
        exit = exits[rank]
        assert exit is not None
        return End(Outcome.FAILED if exit.did_run else Outcome.DEPLOY_FAILED, describe(rank, exit))
    if stop is not None and any(exit is None or exit.was_stopped for exit in exits):
        return stop
    if None in exits:
        return End(Outcome.FAILED, f"node {exits.index(None)}'s runner was killed")
    return End(Outcome.COMPLETED)


def has_failed(exit: Exit) -> bool:
    """Return whether the node ended badly, and not because it was asked to end."""
    return exit.status != 0 and not exit.was_stopped


def describe(rank: int, exit: Exit) -> str:
    """Say for people how a node ended: `node 1 exited with status 3`."""
    if not exit.did_run:
        return f"node {rank} could not start: {exit.reason}"
    how = f"exited with status {exit.status}" if exit.status >= 0 else f"was killed by {_signal_name(-exit.status)}"
    return f"node {rank} {how}" + (f" ({exit.reason})" if exit.reason else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
