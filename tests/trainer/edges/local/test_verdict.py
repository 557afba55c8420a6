"""Checks how the ends of its nodes decide how an attempt ended."""

import pytest

from policy.training.statuses import Outcome
from trainer.edges.local.verdict import End, verdict
from trainer.runner.state import Exit

STOP = End(Outcome.STOPPED)


def left(
    status: int = 0, at_ns: int = 1, reason: str | None = None, did_run: bool = True, was_stopped: bool = False
) -> Exit:
    return Exit(status, reason, did_run, was_stopped, is_kept=False, at_ns=at_ns)


@pytest.mark.parametrize(
    ("exits", "stop", "expected"),
    [
        ([left(), left()], None, End(Outcome.COMPLETED)),
        ([left(), left()], STOP, End(Outcome.COMPLETED)),
        ([left(-15, was_stopped=True), left()], STOP, STOP),
        ([left(0, was_stopped=True)], STOP, STOP),
        ([None], STOP, STOP),
        ([None, left()], None, End(Outcome.FAILED, "node 0's runner was killed")),
        ([left(3)], STOP, End(Outcome.FAILED, "node 0 exited with status 3")),
        ([left(1, 9), left(2, 8)], None, End(Outcome.FAILED, "node 1 exited with status 2")),
        ([None, left(2)], None, End(Outcome.FAILED, "node 1 exited with status 2")),
        (
            [left(-9, reason="memory limit 1 MiB")],
            None,
            End(Outcome.FAILED, "node 0 was killed by SIGKILL (memory limit 1 MiB)"),
        ),
        ([left(-40)], None, End(Outcome.FAILED, "node 0 was killed by signal 40")),
        ([left(126, reason="no", did_run=False)], None, End(Outcome.DEPLOY_FAILED, "node 0 could not start: no")),
    ],
)
def test_first_own_failure_decides_then_a_stop_then_a_killed_runner(
    exits: list[Exit | None], stop: End | None, expected: End
) -> None:
    assert verdict(exits, stop) == expected


@pytest.mark.parametrize("damaged", [None, {}, {"outcome": "NONE", "error_message": None}, {"outcome": "FAILED"}])
def test_damaged_end_is_none(damaged: dict[str, object] | None) -> None:
    assert End.from_json(damaged) is None
    assert End.from_json(STOP.to_json()) == STOP
