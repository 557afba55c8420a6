"""Conversations with the switchboard about background calls, which come after all others."""

import pytest

from policy.deployments import NOT_SERVING, PARKING, Deployment, HealthCheck, Where
from proxy.replicas.replica_calls import Wanted
from tests.proxy.replicas.supervisor.board import Board, Said

A = "http://a"
B = "http://b"
PARKED: Said = ("waits", "replica")
QUEUED: Said = ("waits", "turn")


@pytest.fixture
def board() -> Board:
    return Board()


def ask(board: Board, number: int, *avoid: str) -> Said:
    want = Wanted("w1", "m1", Where(None, "d1"), "background", background=True)
    board.switchboard.ask((0, number), want, frozenset(avoid))
    return board.last(number)


def serving(*urls: str, most: int | None = 1, queued: int = 1) -> Deployment:
    return Deployment("d1", "ACTIVE", urls, None, most, queued)


def test_other_calls_go_first_however_late_they_came(board: Board) -> None:
    board.deploy(serving(A, queued=10))
    assert board.ask(1) == ("replica", A)
    assert [ask(board, number) for number in (2, 3)] == [QUEUED, QUEUED]
    assert [board.ask(number) for number in (4, 5)] == [QUEUED, QUEUED]
    for number in (1, 4, 5, 2):
        board.end(number)
    assert board.started([1, 2, 3, 4, 5]) == [1, 4, 5, 2, 3]


def test_background_calls_take_no_room_in_the_queue_and_are_not_shed(board: Board) -> None:
    board.deploy(serving(A))
    board.ask(1)
    assert [ask(board, number) for number in range(10, 20)] == [QUEUED] * 10
    assert board.ask(2) == QUEUED
    assert board.ask(3) == ("refused", "full")
    assert board.figures() == (1, 11, 0)
    board.end(1, 2)
    assert board.last(10) == ("replica", A)


def test_none_starts_while_another_call_waits_for_the_turn_of_one_replica(board: Board) -> None:
    board.deploy(serving(A, B, queued=10))
    assert [board.ask(1), board.ask(2)] == [("replica", A), ("replica", B)]
    board.unreachable(1)
    assert board.ask_again(1, A) == QUEUED
    assert ask(board, 3) == QUEUED, "A has room"
    board.end(1)
    assert board.last(3) == ("replica", A)


def test_queue_that_became_too_long_is_not_shortened_for_a_background_call(board: Board) -> None:
    board.deploy(serving(A, B))
    assert [board.ask(number)[0] for number in (1, 2, 3, 4)] == ["replica", "replica", "waits", "waits"]  # type: ignore[index]
    board.deploy(serving(A))
    assert ask(board, 5) == QUEUED
    assert [board.last(3), board.last(4)] == [QUEUED, QUEUED]


@pytest.mark.parametrize("status", sorted({*NOT_SERVING, *PARKING, "ACTIVE", "UNHEALTHY"}))
def test_without_a_replica_it_counts_as_parked_whatever_the_status(board: Board, status: str) -> None:
    board.deploy(Deployment("d1", status, ()))
    assert ask(board, 1) == PARKED
    assert board.figures() == (0, 0, 1)
    assert board.loads_changed == ["d1"]
    board.wait(10_000)
    assert board.last(1) == PARKED
    board.deploy(serving(A))
    assert board.last(1) == ("replica", A)
    assert board.figures() == (1, 0, 0)


def test_it_is_told_when_the_last_replica_becomes_unhealthy_and_when_one_is_healthy_again(board: Board) -> None:
    board.deploy(Deployment("d1", "ACTIVE", (A,), HealthCheck(), 1))
    board.ask(1)
    assert ask(board, 2) == QUEUED
    board.switchboard.probed("d1", A, False)
    assert board.last(2) == PARKED
    board.switchboard.probed("d1", A, True)
    assert board.last(2) == QUEUED
    board.end(1)
    assert board.last(2) == ("replica", A)


def test_after_an_unreachable_replica_it_tries_another_one_and_is_then_refused(board: Board) -> None:
    board.deploy(serving(A, B))
    assert ask(board, 1) == ("replica", A)
    board.unreachable(1)
    assert ask(board, 1, A) == ("replica", B)
    board.unreachable(1)
    assert ask(board, 1, A, B) == ("refused", "no_replica")


def test_it_waits_for_the_turn_of_another_replica_and_is_refused_when_that_goes(board: Board) -> None:
    board.deploy(serving(A, B))
    ask(board, 1)
    ask(board, 2)
    board.unreachable(1)
    assert ask(board, 1, A) == QUEUED
    board.deploy(serving(A))
    assert board.last(1) == ("refused", "no_replica")


def test_one_that_has_begun_goes_before_those_that_have_not(board: Board) -> None:
    board.deploy(serving(A, B))
    assert [ask(board, number)[0] for number in (1, 2, 3)] == ["replica", "replica", "waits"]
    board.unreachable(1)  # its place at A goes to the third
    ask(board, 4)
    assert ask(board, 1, A) == QUEUED
    board.end(2)
    assert board.last(1) == ("replica", B)
    assert board.last(4) == QUEUED


def test_deleting_the_deployment_refuses_them(board: Board) -> None:
    board.deploy(Deployment("d1", "INACTIVE", ()))
    ask(board, 1)
    board.delete()
    assert board.last(1) == ("refused", "no_model")
    assert ask(board, 2) == ("refused", "no_model")


def test_withdrawn_call_leaves_no_line_in_the_log(board: Board) -> None:
    board.deploy(serving(A))
    ask(board, 1)
    ask(board, 2)
    board.switchboard.ended((0, 1), None)
    assert board.last(2) == ("replica", A)
    board.switchboard.ended((0, 2), None)
    assert board.figures() == (0, 0, 0)
    assert board.ended_calls == []


def test_dead_worker_frees_its_places_and_its_asks(board: Board) -> None:
    board.deploy(serving(A))
    ask(board, 1)
    ask(board, 2)
    board.switchboard.worker_died(0)
    assert board.figures() == (0, 0, 0)
    assert board.ask(3) == ("replica", A)
