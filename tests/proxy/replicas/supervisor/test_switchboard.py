"""Conversations with the switchboard: workers ask, policy and probes change, and each call is told where it stands."""

from collections.abc import Callable

import pytest

from policy.deployments import NOT_SERVING, PARKING, Deployment, HealthCheck
from proxy.replicas.supervisor.circuit_breaker import FAILURES_TO_OPEN
from tests.proxy.replicas.supervisor.board import Board, Said

A = "http://a"
B = "http://b"
C = "http://c"
D = "http://d"
PARKED: Said = ("waits", "replica")
QUEUED: Said = ("waits", "turn")
NO_MODEL: Said = ("refused", "no_model")
NO_REPLICA: Said = ("refused", "no_replica")
NOT_ROUTED: Said = ("refused", "not_routed")
FULL: Said = ("refused", "full")


def gets(url: str) -> Said:
    return ("replica", url)


def active(*urls: str, id: str = "d1", most: int | None = None, queued: int = 100) -> Deployment:
    return Deployment(id, "ACTIVE", urls, max_concurrency=most, max_queued=queued)


def probed(status: str, *urls: str, id: str = "d1", most: int | None = None) -> Deployment:
    return Deployment(id, status, urls, HealthCheck(), most)


@pytest.fixture
def board() -> Board:
    return Board()


def trip(board: Board, numbers: range) -> None:
    """Open the breaker of the only replica, by failed calls."""
    for number in numbers:
        assert board.ask(number)[0] == "replica"  # type: ignore[index] # it is told something
        board.reset(number)
        board.end(number)


# Who gets which replica.


def test_call_gets_the_only_replica(board: Board) -> None:
    board.deploy(active(A))
    assert board.ask(1) == gets(A)
    assert board.figures() == (1, 0, 0)
    board.end(1)
    assert board.figures() == (0, 0, 0)
    assert board.ended_calls == [("d1", A)]


def test_less_loaded_of_two_replicas_gets_the_call(board: Board) -> None:
    board.deploy(active(A, B))
    assert [board.ask(number) for number in range(4)] == [gets(A), gets(B), gets(A), gets(B)]
    board.end(0, 2)
    assert [board.ask(number) for number in (5, 6)] == [gets(A), gets(A)]


@pytest.mark.parametrize(
    "more", [{"model": "m2"}, {"workspace": "w2"}, {"environment": "staging"}, {"deployment": "d2"}], ids=str
)
def test_unknown_or_foreign_model_is_refused(board: Board, more: dict[str, str]) -> None:
    board.deploy(active(A))
    assert board.ask(1, **more) == NO_MODEL
    board.end(1)
    assert board.ended_calls == []


def test_environments_are_found_without_regard_to_case_and_deployments_by_id(board: Board) -> None:
    board.deploy(active(A), active(B, id="d2"), production="d1", Staging="d2")
    assert board.ask(1, environment="staging") == gets(B)
    assert board.ask(2, deployment="d2") == gets(B)


def test_policy_that_cannot_be_read_is_not_a_missing_model(board: Board) -> None:
    board.unreadable = True
    assert board.ask(1) == ("refused", "no_policy")


@pytest.mark.parametrize("status", sorted(NOT_SERVING))
def test_deployment_that_does_not_serve_refuses(board: Board, status: str) -> None:
    board.deploy(Deployment("d1", status, (A,)))
    assert board.ask(1) == NO_REPLICA


@pytest.mark.parametrize("status", ["ACTIVE", "UPDATING", "UNHEALTHY", "NEWER_THAN_THIS_PROXY"])
def test_deployment_without_healthy_replicas_refuses(board: Board, status: str) -> None:
    board.deploy(Deployment("d1", status))
    assert board.ask(1) == NO_REPLICA


# Replicas that cannot be reached.


def test_unreachable_replica_is_not_assigned_to_the_same_call_again(board: Board) -> None:
    board.deploy(active(A, B))
    assert board.ask(1) == gets(A)
    board.unreachable(1)
    assert board.ask_again(1, A) == gets(B)
    board.unreachable(1)
    assert board.ask_again(1, A, B) == NO_REPLICA
    board.end(1)
    assert board.figures() == (0, 0, 0)


def test_at_most_three_replicas_are_tried(board: Board) -> None:
    board.deploy(active(A, B, C, D))
    tried = [board.ask(1)]
    avoid: list[str] = []
    while tried[-1] is not None and tried[-1][0] == "replica":
        avoid.append(tried[-1][1])
        board.unreachable(1)
        tried.append(board.ask_again(1, *avoid))
    assert len(set(tried[:-1])) == 3
    assert tried[-1] == NO_REPLICA


def test_five_failures_open_the_breaker_for_a_second(board: Board) -> None:
    board.deploy(active(A))
    trip(board, range(FAILURES_TO_OPEN))
    assert (board.ask(10), board.healthy()) == (NO_REPLICA, ())
    board.wait(1.0)
    assert board.healthy() == (A,)
    assert board.ask(11) == gets(A)
    assert board.ask(12) == NO_REPLICA, "one trial at a time"
    board.answered(11)
    assert board.ask(13) == gets(A)


def test_breaker_belongs_to_one_deployment(board: Board) -> None:
    board.deploy(active(A), active(A, id="d2"), production="d1", other="d2")
    trip(board, range(FAILURES_TO_OPEN))
    assert board.ask(10) == NO_REPLICA
    assert board.ask(11, environment="other") == gets(A)


def test_abandoned_trial_lets_another_call_try(board: Board) -> None:
    board.deploy(active(A))
    trip(board, range(FAILURES_TO_OPEN))
    board.wait(1.0)
    assert board.ask(10) == gets(A)
    board.end(10)
    assert board.ask(11) == gets(A)


# Parking.


@pytest.mark.parametrize("status", sorted(PARKING))
def test_parked_call_starts_when_a_replica_is_listed(board: Board, status: str) -> None:
    board.deploy(Deployment("d1", status))
    assert board.ask(1) == PARKED
    assert board.figures() == (0, 0, 1)
    board.deploy(active(A))
    assert board.last(1) == gets(A)
    assert board.figures() == (1, 0, 0)


def test_parked_call_starts_with_the_first_good_probe(board: Board) -> None:
    board.deploy(probed("SCALED_TO_ZERO"))
    assert board.ask(1) == PARKED
    board.deploy(probed("LOADING_MODEL", A))
    assert board.last(1) == PARKED
    board.switchboard.probed("d1", A, True)
    assert board.last(1) == gets(A), "control's ACTIVE need not have arrived"


def test_listed_replica_without_a_probe_does_not_serve_while_the_status_says_to_wait(board: Board) -> None:
    board.deploy(Deployment("d1", "LOADING_MODEL", (A,)))
    assert board.ask(1) == PARKED


def test_parked_calls_start_in_order_and_in_turn_between_groups(board: Board) -> None:
    board.deploy(Deployment("d1", "SCALED_TO_ZERO"))
    for number in range(6):
        board.ask(number, turn="noisy")
    board.ask(10, turn="modest")
    board.ask(11, turn="modest")
    board.deploy(active(A))
    assert board.started(range(20)) == [0, 10, 1, 11, 2, 3, 4, 5]


def test_caller_that_leaves_frees_his_place(board: Board) -> None:
    board.deploy(Deployment("d1", "SCALED_TO_ZERO"))
    board.ask(1)
    board.ask(2)
    board.end(1)
    assert board.figures() == (0, 0, 1)
    board.deploy(active(A))
    assert board.started(range(3)) == [2]
    assert board.ended_calls == [("d1", None)]


@pytest.mark.parametrize("status", sorted(NOT_SERVING))
def test_parked_call_is_not_routed_when_its_deployment_ceases_to_serve(board: Board, status: str) -> None:
    board.deploy(Deployment("d1", "WAKING_UP"))
    board.ask(1)
    board.deploy(Deployment("d1", status))
    assert board.last(1) == NOT_ROUTED


def test_parked_call_is_never_answered_503(board: Board) -> None:
    board.deploy(Deployment("d1", "WAKING_UP"))
    board.ask(1)
    board.deploy(Deployment("d1", "ACTIVE"))
    assert board.last(1) == PARKED
    board.deploy(Deployment("d1", "UNHEALTHY"))
    assert board.ask(2) == NO_REPLICA
    board.deploy(active(A))
    assert board.last(1) == gets(A)
    board.unreachable(1)
    assert board.ask_again(1, A) == PARKED
    board.deploy(Deployment("d1", "UNHEALTHY"))
    board.deploy(Deployment("d1", "SCALED_TO_ZERO"))
    assert board.last(1) == PARKED
    board.deploy(active(B))
    assert board.last(1) == gets(B)


def test_parked_call_tries_an_unreachable_replica_again_after_a_second(board: Board) -> None:
    """The replica has just started; its socket may have been late."""
    board.deploy(Deployment("d1", "WAKING_UP"))
    board.ask(1)
    board.deploy(active(A))
    board.unreachable(1)
    assert board.ask_again(1, A) == PARKED
    assert board.ask(2) == gets(A), "others may use it"
    board.wait(0.9)
    assert board.last(1) == PARKED
    board.wait(0.1)
    assert board.last(1) == gets(A)


def test_parked_call_follows_its_environment(board: Board) -> None:
    board.deploy(Deployment("d1", "SCALED_TO_ZERO"), active(B, id="d2"))
    board.ask(1)
    board.ask(2, deployment="d1")
    board.deploy(Deployment("d1", "SCALED_TO_ZERO"), active(B, id="d2"), production="d2")
    assert (board.last(1), board.last(2)) == (gets(B), PARKED)
    assert (board.figures("d1"), board.figures("d2")) == ((0, 0, 1), (1, 0, 0))
    board.end(1)
    assert board.ended_calls == [("d2", B)]


def test_parked_calls_keep_their_order_when_they_move(board: Board) -> None:
    board.deploy(Deployment("d1", "SCALED_TO_ZERO"), Deployment("d2", "DEPLOYING"))
    for number in range(4):
        board.ask(number, turn="g1" if number % 2 else "g2")
    board.deploy(Deployment("d1", "SCALED_TO_ZERO"), Deployment("d2", "DEPLOYING"), production="d2")
    assert board.figures("d2") == (0, 0, 4)
    board.deploy(active(A, id="d2"), production="d2")
    assert board.started(range(4)) == [0, 1, 2, 3]


def test_parked_call_of_a_deleted_model_is_refused(board: Board) -> None:
    board.deploy(Deployment("d1", "SCALED_TO_ZERO"))
    board.ask(1)
    board.delete()
    assert board.last(1) == NO_MODEL
    assert board.switchboard.loads() == []


# max_concurrency.


def test_calls_above_max_concurrency_wait_for_their_turn(board: Board) -> None:
    board.deploy(active(A, B, most=1))
    assert [board.ask(number) for number in range(3)] == [gets(A), gets(B), QUEUED]
    assert board.figures() == (2, 1, 0)
    board.end(1)
    assert board.last(2) == gets(B)


def test_newcomer_does_not_overtake_who_waits(board: Board) -> None:
    board.deploy(active(A, most=1))
    for number in range(3):
        board.ask(number)
    board.end(0)
    assert board.ask(3) == QUEUED
    board.end(1, 2)
    assert board.started(range(4)) == [0, 1, 2, 3]


def test_full_queue_refuses_the_newcomer(board: Board) -> None:
    board.deploy(active(A, most=1, queued=2))
    assert [board.ask(number) for number in range(4)] == [gets(A), QUEUED, QUEUED, FULL]
    board.end(3)
    assert board.figures() == (1, 2, 0)


def test_queue_may_be_left_out(board: Board) -> None:
    board.deploy(active(A, most=1, queued=0))
    assert [board.ask(number) for number in range(2)] == [gets(A), FULL]


def test_queue_is_bounded_per_healthy_replica(board: Board) -> None:
    board.deploy(active(A, B, most=1, queued=1))
    assert [board.ask(number) for number in range(5)] == [gets(A), gets(B), QUEUED, QUEUED, FULL]


def test_full_queue_sheds_from_the_longest_group(board: Board) -> None:
    board.deploy(active(A, most=1, queued=3))
    for number in range(4):
        board.ask(number, turn="noisy")
    assert board.ask(10, turn="modest") == QUEUED
    assert board.last(3) == FULL, "the noisy group's newest call"
    assert board.ask(11, turn="modest") == FULL, "now it is no shorter"
    assert board.ask(12, turn="noisy") == FULL
    board.end(0, 3)
    assert board.started(range(20)) == [0, 1]
    board.end(1)
    assert board.last(10) == gets(A), "each group in its turn"


def test_full_queue_does_not_shed_a_call_that_was_parked(board: Board) -> None:
    board.deploy(Deployment("d1", "SCALED_TO_ZERO", max_concurrency=1, max_queued=1))
    for number in range(5):
        board.ask(number)
    board.deploy(active(A, most=1, queued=1))
    assert board.figures() == (1, 4, 0)
    assert board.ask(10, turn="g2") == QUEUED, "they take no place of the queue either"
    assert board.ask(11, turn="g3") == FULL
    assert [board.last(number) for number in range(5)] == [gets(A), *[QUEUED] * 4]


def test_queued_calls_without_a_healthy_replica_are_refused(board: Board) -> None:
    board.deploy(active(A, most=1))
    board.ask(1)
    board.ask(2)
    board.deploy(Deployment("d1", "ACTIVE", max_concurrency=1))
    assert board.last(2) == NO_REPLICA


def test_queued_calls_are_parked_when_the_deployment_scales_to_zero(board: Board) -> None:
    board.deploy(active(A, most=1))
    board.ask(1)
    board.ask(2)
    board.deploy(Deployment("d1", "SCALED_TO_ZERO", max_concurrency=1))
    assert board.last(2) == PARKED
    assert board.figures() == (1, 0, 1)
    board.deploy(active(A, most=1))
    assert board.last(2) == QUEUED, "the replica still has its call"
    board.end(1)
    assert board.last(2) == gets(A)


def test_raised_bound_starts_queued_calls(board: Board) -> None:
    board.deploy(active(A, most=1))
    board.ask(1)
    board.ask(2)
    board.deploy(active(A))
    assert board.last(2) == gets(A)


def test_waiting_call_gets_the_trial_when_the_breaker_allows_one(board: Board) -> None:
    board.deploy(active(A, B, most=1))
    for number in range(FAILURES_TO_OPEN):
        board.ask(number)
        board.reset(number)
        board.end(number)
    assert board.healthy() == (B,)
    assert [board.ask(number) for number in (10, 11)] == [gets(B), QUEUED]
    board.wait(1.0)
    assert board.last(11) == gets(A)


def test_retried_call_is_the_first_of_its_group(board: Board) -> None:
    board.deploy(active(A, B, most=1))
    for number in range(5):
        board.ask(number)
    board.unreachable(0)
    assert board.last(2) == gets(A)
    assert board.ask_again(0, A) == QUEUED
    board.end(2)
    assert board.last(3) == gets(A), "the retried call avoids that one"
    board.end(1)
    assert board.last(0) == gets(B)


def test_retried_call_is_refused_when_what_it_waits_for_is_gone(board: Board) -> None:
    board.deploy(active(A, B, most=1))
    board.ask(0)
    board.ask(1)
    board.unreachable(0)
    assert board.ask_again(0, A) == QUEUED
    board.wait(5.0)
    board.deploy(active(A, most=1))
    assert board.last(0) == NO_REPLICA


# Health.


def test_newly_listed_replica_is_unhealthy_until_its_first_good_probe(board: Board) -> None:
    board.deploy(probed("ACTIVE", A))
    board.deploy(probed("ACTIVE", A, B))
    assert board.healthy() == (A,), "control says that it serves, so A did"
    board.switchboard.probed("d1", B, True)
    assert board.healthy() == (A, B)
    board.switchboard.probed("d1", A, False)
    assert [board.ask(number) for number in range(2)] == [gets(B), gets(B)]
    board.switchboard.probed("d1", B, False)
    assert board.ask(3) == NO_REPLICA


def test_replica_that_comes_back_must_be_probed_again(board: Board) -> None:
    board.deploy(probed("LOADING_MODEL", A))
    board.switchboard.probed("d1", A, True)
    assert board.ask(1) == gets(A)
    board.deploy(probed("SCALED_TO_ZERO"))
    board.deploy(probed("LOADING_MODEL", A))
    assert board.healthy() == ()


def test_deployment_that_is_switched_on_again_must_be_probed_again(board: Board) -> None:
    board.deploy(probed("LOADING_MODEL", A))
    board.switchboard.probed("d1", A, True)
    board.deploy(probed("INACTIVE", A))
    board.deploy(probed("LOADING_MODEL", A))
    assert board.ask(1) == PARKED, "an hour may have passed without a probe"
    board.switchboard.probed("d1", A, True)
    assert board.last(1) == gets(A)


def test_health_check_added_later_does_not_interrupt_service(board: Board) -> None:
    board.deploy(active(A))
    board.ask(1)
    board.deploy(probed("ACTIVE", A))
    assert board.ask(2) == gets(A)


def test_verdicts_on_unlisted_and_unprobed_replicas_are_ignored(board: Board) -> None:
    board.deploy(active(A))
    board.ask(1)
    board.switchboard.probed("d1", A, False)
    board.switchboard.probed("d1", B, True)
    board.switchboard.probed("d2", B, True)
    assert board.healthy() == (A,)


def test_probed_deployment_is_known_before_its_first_call(board: Board) -> None:
    board.deploy(probed("LOADING_MODEL", A), active(B, id="d2"))
    [load] = board.switchboard.loads()
    assert (load.model_id, load.deployment_id) == ("m1", "d1")
    assert [board.switchboard.workspace_of(id) for id in ("d1", "d9")] == ["w1", None]
    assert (load.healthy, load.unhealthy, load.last_request_at_ms) == ((), (A,), None)
    board.switchboard.probed("d1", A, True)
    assert board.healthy() == (A,)


# Replicas and deployments that go.


def test_replica_taken_off_the_list_finishes_what_it_has(board: Board) -> None:
    board.deploy(active(A, most=1))
    board.ask(1)
    board.deploy(active(B, most=1))
    assert board.ask(2) == gets(B)
    assert board.figures() == (2, 0, 0)
    board.end(1)
    assert board.figures() == (1, 0, 0)
    assert board.ended_calls == [("d1", A)]


def test_relisted_replica_still_has_its_calls(board: Board) -> None:
    board.deploy(active(A, most=1))
    board.ask(1)
    board.deploy(active(B, most=1))
    board.deploy(active(A, most=1))
    assert board.ask(2) == QUEUED


def test_deleted_deployment_is_forgotten_with_its_last_call(board: Board) -> None:
    board.deploy(active(A))
    board.ask(1)
    board.delete()
    assert board.figures() == (1, 0, 0)
    board.end(1)
    assert board.switchboard.loads() == []


def test_dead_workers_calls_are_released_at_once(board: Board) -> None:
    board.deploy(active(A, most=2))
    for number in range(4):
        board.ask(number)
    board.switchboard.ask((1, 0), board.switchboard._calls[0, 0].request)
    assert board.figures() == (2, 3, 0)
    board.switchboard.worker_died(0)
    assert board.answers[-1] == ((1, 0), gets(A))
    assert board.figures() == (1, 0, 0)
    assert board.ask(1) == gets(A), "the next worker in the slot counts from 1 again"


# What control is told.


def test_load_is_reported_when_a_figure_leaves_0_or_returns_to_it(board: Board) -> None:
    board.deploy(active(A, most=1))
    changes = []
    acts: list[Callable[[], object]] = [
        lambda: board.ask(1),
        lambda: board.ask(2),
        lambda: board.ask(3),
        lambda: board.end(3),
        lambda: board.end(2),
        lambda: board.end(1),
    ]
    for act in acts:
        board.loads_changed.clear()
        act()
        changes.append(board.loads_changed == ["d1"])
    assert changes == [True, True, False, False, True, True]


def test_load_is_reported_when_health_changes(board: Board) -> None:
    board.deploy(probed("LOADING_MODEL", A, B))
    board.loads_changed.clear()
    board.switchboard.probed("d1", A, True)
    board.switchboard.probed("d1", A, True)
    board.switchboard.probed("d1", B, True)
    assert board.loads_changed == ["d1", "d1"]


def test_opened_breaker_is_reported_and_so_is_its_next_trial(board: Board) -> None:
    board.deploy(active(A))
    trip(board, range(FAILURES_TO_OPEN - 1))
    board.ask(9)
    board.loads_changed.clear()
    board.reset(9)
    assert board.loads_changed == ["d1"]
    board.end(9)
    board.loads_changed.clear()
    board.wait(1.0)
    assert board.loads_changed == ["d1"]
    assert board.wakes_at is None
