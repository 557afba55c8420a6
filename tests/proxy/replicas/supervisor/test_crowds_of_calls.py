"""Thousands of calls of one tenant must not keep the switchboard from the others': work is bounded, and in slices."""

from collections import Counter
from typing import Any

import pytest

from policy.deployments import Deployment
from proxy.replicas.supervisor.deployment_calls import DeploymentCalls
from tests.proxy.replicas.supervisor.board import Board


def test_calls_that_avoid_a_replica_are_not_looked_at_for_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of parked calls meet replicas that refuse connections: the work grows with the messages alone."""
    calls, looks = 300, Counter[str]()
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
    assigned = [(number, said[1]) for (_, number), said in board.said if said[0] == "replica"]
    while assigned:
        told = len(board.said)
        for number, url in assigned:
            met.setdefault(number, []).append(url)
            board.unreachable(number)
            board.ask_again(number, *met[number])
        assigned = [(number, said[1]) for (_, number), said in board.said[told:] if said[0] == "replica"]
    assert board.figures() == (0, 0, calls)
    assert looks["prospects"] < 4 * (calls + sum(map(len, met.values())))
    board.wait(1.0)
    assert board.figures()[2] < calls, "each breaker lets one call try again"
