"""The rules of wake hooks, without a database. With one: tests/control/api/test_wake_hooks.py."""

import itertools

import pytest

from control.records.models import DeploymentRecord
from control.resources.platform.wakes import LEASE_MS, LONGEST_PAUSE_MS, has_wake_hook, pause_after

HOOK = "https://launcher.example.com/wake/secret"
STATUSES = (
    *("BUILDING", "DEPLOYING", "LOADING_MODEL", "ACTIVE", "SCALED_TO_ZERO", "WAKING_UP"),
    *("UPDATING", "UNHEALTHY", "FAILED", "DEPLOY_FAILED", "DEACTIVATING", "INACTIVE"),
)


def deployment(status: str, replicas: tuple[str, ...] = (), wake_url: str | None = HOOK) -> DeploymentRecord:
    return DeploymentRecord("dep", "mdl", "first", status, replicas, 1, 1, wake_url)


@pytest.mark.parametrize("status", STATUSES)
def test_hook_is_asked_only_while_scaled_to_zero(status: str) -> None:
    assert has_wake_hook(deployment(status)) == (status in ("DEPLOYING", "SCALED_TO_ZERO", "WAKING_UP"))
    assert not has_wake_hook(deployment(status, wake_url=None))


def test_deployment_with_replicas_is_not_woken_while_deploying() -> None:
    assert not has_wake_hook(deployment("DEPLOYING", ("http://r:1",)))


def pauses(*outcomes: bool) -> list[int]:
    return [*itertools.accumulate(outcomes, pause_after, initial=0)][1:]


def test_pause_after_answers_doubles_from_ten_seconds_to_sixty() -> None:
    assert pauses(*[True] * 5) == [10_000, 20_000, 40_000, 60_000, 60_000]


def test_pause_after_failures_doubles_from_one_second_to_sixty() -> None:
    expected = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    assert [abs(ms) for ms in pauses(*[False] * 8)] == expected


def test_each_kind_of_outcome_begins_its_own_schedule() -> None:
    assert [abs(ms) for ms in pauses(True, True, False, False, True, False)] == [
        *(10_000, 20_000, 1_000, 2_000, 10_000, 1_000)
    ]
    assert abs(pauses(*[True] * 6, False)[-1]) == 1_000
    assert abs(pauses(*[False] * 9, True)[-1]) == 10_000


def test_lease_is_shorter_than_a_quiet_while() -> None:
    assert LEASE_MS < LONGEST_PAUSE_MS
