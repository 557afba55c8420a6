"""Thousands of calls of one tenant must not keep the switchboard from the others': work is bounded, and in slices."""

from collections import Counter
from typing import Any

import pytest

from policy.deployments import Deployment, HealthCheck
from policy.snapshot import ModelRow
from proxy.replicas.supervisor import switchboard
from proxy.replicas.supervisor.deployment_calls import DeploymentCalls
from proxy.replicas.supervisor.known_deployments import KnownDeployments
from tests.proxy.replicas.supervisor.board import Board


def test_calls_that_avoid_a_replica_are_not_looked_at_for_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of parked calls meet replicas that refuse connections: the work grows with the messages alone."""
    calls = 300
    looks = Counter[str]()
    prospects = DeploymentCalls.prospects

    def counted(deployment: DeploymentCalls, *what: Any) -> Any:
        looks["prospects"] += 1
        return prospects(deployment, *what)

    monkeypatch.setattr(DeploymentCalls, "prospects", counted)
    board = Board()
    board.deploy(Deployment("d1", "SCALED_TO_ZERO"))
    for number in range(calls):
        board.ask(number)
    board.deploy(Deployment("d1", "ACTIVE", tuple(f"http://r{number}" for number in range(50))))
    met: dict[int, list[str]] = {}
    assigned = [(number, message[1]) for (_, number), message in board.answers if message[0] == "replica"]
    while assigned:
        before = len(board.answers)
        for number, url in assigned:
            met.setdefault(number, []).append(url)
            board.unreachable(number)
            board.ask_again(number, *met[number])
        assigned = [(number, message[1]) for (_, number), message in board.answers[before:] if message[0] == "replica"]
    assert board.figures() == (0, 0, calls)
    assert looks["prospects"] < 4 * (calls + sum(map(len, met.values())))
    board.wait(1.0)
    assert board.figures()[2] < calls, "each breaker lets one call try again"


ASLEEP = Deployment("d1", "SCALED_TO_ZERO")
CHANGES: dict[str, tuple[list[Deployment], dict[str, str], str]] = {
    "moved": ([ASLEEP, Deployment("d2", "SCALED_TO_ZERO")], {"production": "d2"}, "waits"),
    "started": ([Deployment("d1", "ACTIVE", ("http://a", "http://b"))], {}, "replica"),
    "refused": ([Deployment("d1", "INACTIVE")], {}, "refused"),
    "unknown": ([ASLEEP], {"other": "d1"}, "refused"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_crowd_is_moved_started_and_refused_in_slices(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    monkeypatch.setattr(switchboard, "SLICE", 10)
    board = Board()
    numbers = range(35)
    board.deploy(ASLEEP, Deployment("d2", "SCALED_TO_ZERO"))
    for number in numbers:
        board.ask(number, turn=f"g{number % 3}")
    before = len(board.answers)
    deployments, environments, what = CHANGES[change]
    board.deploy(*deployments, **environments)
    assert len(board.answers) - before <= 10, "the loop has others to serve"
    assert board.wakes_at is not None
    assert board.wakes_at <= board.now, "the rest follows at once"
    board.wait(0)
    outcomes = [(id[1], what[0]) for id, what in board.answers[before:]]
    assert sorted(outcomes) == [(number, what) for number in numbers]
    if change == "moved":
        assert board.figures("d1") == (0, 0, 0)
        assert board.figures("d2") == (0, 0, 35)
    board.end(*numbers)
    assert all(board.figures(one.id) == (0, 0, 0) for one in deployments)


def test_calls_that_leave_while_a_crowd_is_moved_are_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchboard, "SLICE", 10)
    board = Board()
    two = (ASLEEP, Deployment("d2", "SCALED_TO_ZERO"))
    board.deploy(*two)
    for number in range(35):
        board.ask(number)
    board.deploy(*two, production="d2")
    board.end(*range(20, 35))
    board.wait(0)
    assert (board.figures("d1"), board.figures("d2")) == ((0, 0, 0), (0, 0, 20))


def test_only_changed_deployments_of_a_model_are_settled() -> None:
    """A model may have thousands."""
    deployments = KnownDeployments()
    one, two, changed = (Deployment(id, status, (), HealthCheck()) for id, status in DEPLOYMENTS)
    model = ModelRow("m1", "w1", {"d1": one, "d2": two}, {"production": "d1"})
    assert len(deployments.follow("m1", model)) == 2
    assert deployments.follow("m1", model) == []
    after = ModelRow("m1", "w1", {"d1": one, "d2": changed}, {"production": "d2"})
    assert [deployment.policy for deployment in deployments.follow("m1", after)] == [changed]
    assert len(deployments.follow("m1", None)) == 2, "all were deleted"


DEPLOYMENTS = [("d1", "ACTIVE"), ("d2", "ACTIVE"), ("d2", "UNHEALTHY")]
