"""A deployment's status after every operation and report, from each of the twelve statuses.

See docs/reference/management-api.md#statuses.
"""

from dataclasses import replace
from typing import get_args

import pytest

from control.api.platform.deployment_schemas import Status
from control.errors import IllegalStatusError
from control.records.loads import UNREPORTED, Load
from control.records.models import DeploymentRecord
from control.resources.platform import statuses
from control.resources.platform.loads import active_replicas
from policy.deployments import (
    ACTIVE,
    BUILDING,
    DEACTIVATING,
    DEPLOY_FAILED,
    DEPLOYING,
    FAILED,
    INACTIVE,
    LOADING_MODEL,
    MOVES_FROM_OUTSIDE,
    SCALED_TO_ZERO,
    UNHEALTHY,
    UPDATING,
    WAKING_UP,
    HealthCheck,
)

ALL = get_args(Status)
TAKEN_UP = (INACTIVE, DEACTIVATING, FAILED, DEPLOY_FAILED)
A = "http://a"
B = "http://b"
PROBED = HealthCheck()
every_status = pytest.mark.parametrize("status", ALL)


def deployment(
    status: str, *replicas: str, health: HealthCheck | None = None, wake_url: str | None = None
) -> DeploymentRecord:
    return DeploymentRecord("d", "m", "first", status, replicas, 1, 1, health=health, wake_url=wake_url)


def reported(*healthy: str, unhealthy: tuple[str, ...] = ()) -> Load:
    return Load(healthy=frozenset(healthy), unhealthy=frozenset(unhealthy))


def test_there_are_twelve_statuses() -> None:
    assert len(ALL) == 12
    assert set(MOVES_FROM_OUTSIDE) <= set(ALL)


@every_status
@pytest.mark.parametrize(
    ("old", "taken_up"),
    [
        (deployment("", A), ACTIVE),
        (deployment("", A, wake_url="http://w"), ACTIVE),
        (deployment("", A, health=PROBED), LOADING_MODEL),
        (deployment("", A, health=PROBED, wake_url="http://w"), LOADING_MODEL),
        (deployment("", wake_url="http://w"), SCALED_TO_ZERO),
        (deployment("", health=PROBED, wake_url="http://w"), SCALED_TO_ZERO),
        (deployment(""), DEPLOYING),
        (deployment("", health=PROBED), DEPLOYING),
    ],
)
def test_activating_takes_up_what_is_switched_off_or_failed(status: str, old: DeploymentRecord, taken_up: str) -> None:
    changed = statuses.activated(replace(old, status=status), UNREPORTED)
    assert changed.status == (taken_up if status in TAKEN_UP else status)
    assert changed.replicas == old.replicas


@every_status
def test_deactivating_keeps_the_replicas(status: str) -> None:
    for record in (deployment(status), deployment(status, A, health=PROBED)):
        assert statuses.deactivated(record) == replace(record, status=INACTIVE)


@every_status
def test_replicas_without_probes_are_active_when_listed(status: str) -> None:
    for old in (deployment(status), deployment(status, A)):
        changed = statuses.with_replicas(old, (A, B), UNREPORTED)
        assert changed.status == (status if status in (INACTIVE, DEACTIVATING) else ACTIVE)
        assert changed.replicas == (A, B)


@every_status
def test_replicas_with_probes_load_until_one_is_healthy(status: str) -> None:
    old = deployment(status, A, health=PROBED)
    loading = status if status in (INACTIVE, DEACTIVATING) else LOADING_MODEL
    assert statuses.with_replicas(old, (B,), UNREPORTED).status == loading
    assert statuses.with_replicas(old, (B,), reported(A)).status == loading, "no listed replica stays healthy"
    assert statuses.with_replicas(old, (A, B), reported(unhealthy=(A,))).status == loading
    assert statuses.with_replicas(old, (A, B), reported(B)).status == loading, "B's report is from an earlier listing"


@every_status
def test_a_replica_that_stays_healthy_keeps_a_deployment_serving(status: str) -> None:
    old = deployment(status, A, health=PROBED)
    stays = status in (ACTIVE, UPDATING, UNHEALTHY, INACTIVE, DEACTIVATING)
    assert statuses.with_replicas(old, (A, B), reported(A)).status == (status if stays else ACTIVE)


@every_status
def test_an_empty_list_scales_to_zero(status: str) -> None:
    for health in (None, PROBED):
        changed = statuses.with_replicas(deployment(status, A, health=health), (), reported(A))
        assert changed.status == (status if status in (INACTIVE, DEACTIVATING) else SCALED_TO_ZERO)


@every_status
@pytest.mark.parametrize("next_status", ALL)
def test_only_the_moves_of_launchers_are_legal_from_outside(status: str, next_status: str) -> None:
    record = deployment(status, A)
    if next_status == status:
        assert statuses.moved(record, next_status, None) == record
    elif next_status in MOVES_FROM_OUTSIDE.get(status, ()):
        assert statuses.moved(record, next_status, None) == replace(record, status=next_status)
    else:
        with pytest.raises(IllegalStatusError) as refused:
            statuses.moved(record, next_status, None)
        assert all(name in refused.value.message for name in (status, next_status, *MOVES_FROM_OUTSIDE.get(status, ())))


def test_the_whole_way_of_a_launcher() -> None:
    record = deployment(SCALED_TO_ZERO, wake_url="http://w")
    for status in (WAKING_UP, LOADING_MODEL, FAILED):
        record = statuses.moved(record, status, "out of memory")
    assert record.error_message == "out of memory"
    assert statuses.moved(record, FAILED, None).error_message == "out of memory"
    assert statuses.moved(record, FAILED, "again").error_message == "again"
    assert statuses.activated(record, UNREPORTED).error_message is None
    assert statuses.with_replicas(record, (A,), UNREPORTED).error_message is None


@every_status
def test_the_first_healthy_replica_activates(status: str) -> None:
    for health in (None, PROBED):
        record = deployment(status, A, B, health=health)
        assert statuses.status_after(record, reported(B)) == (
            ACTIVE if status in (LOADING_MODEL, UNHEALTHY) else status
        )
        assert statuses.status_after(record, reported("http://gone")) == status


@every_status
def test_a_deployment_is_unhealthy_when_all_replicas_are_reported_so(status: str) -> None:
    record = deployment(status, A, B)
    bad = reported(unhealthy=(A, B, "http://gone"))
    assert statuses.status_after(record, bad) == (UNHEALTHY if status == ACTIVE else status)


@every_status
def test_a_report_that_does_not_mention_a_new_replica_says_nothing_of_it(status: str) -> None:
    for load in (UNREPORTED, reported(), reported(unhealthy=(A,)), reported("http://gone")):
        assert statuses.status_after(deployment(status, A, B), load) == status
        assert statuses.status_after(deployment(status), load) == status


def test_replicas_serve_on_when_probes_begin_and_are_healthy_when_they_end() -> None:
    for status in (ACTIVE, UPDATING, UNHEALTHY):
        assert statuses.with_settings(deployment(status, A), {"health": PROBED}).status == status
        probed = deployment(status, A, health=PROBED)
        assert statuses.with_settings(probed, {"health": HealthCheck("/other")}).status == status
    for status in (LOADING_MODEL, UNHEALTHY):
        assert statuses.with_settings(deployment(status, A, health=PROBED), {"health": None}).status == ACTIVE
    for status in (INACTIVE, FAILED, SCALED_TO_ZERO, DEPLOYING, BUILDING, WAKING_UP):
        assert statuses.with_settings(deployment(status, A), {"health": PROBED}).status == status
        assert statuses.with_settings(deployment(status, A, health=PROBED), {"health": None}).status == status
    assert statuses.with_settings(deployment(LOADING_MODEL, health=PROBED), {"health": None}).status == LOADING_MODEL


def test_new_replicas_activation_and_a_new_hook_restart_the_wake_schedule() -> None:
    paused = replace(deployment(WAKING_UP, wake_url="http://w"), wake_next_ms=9, wake_pause_ms=8)
    for changed in (
        statuses.with_replicas(paused, (), UNREPORTED),
        statuses.with_replicas(paused, (A,), UNREPORTED),
        statuses.activated(paused, UNREPORTED),
        statuses.activated(replace(paused, status=INACTIVE), UNREPORTED),
        statuses.with_settings(paused, {"wake_url": "http://v"}),
    ):
        assert (changed.wake_next_ms, changed.wake_pause_ms) == (0, 0)
    for record in (
        statuses.with_settings(paused, {"name": "second", "max_queued": 3}),
        statuses.moved(paused, LOADING_MODEL, None),
        statuses.deactivated(paused),
    ):
        assert (record.wake_next_ms, record.wake_pause_ms) == (9, 8)


@every_status
def test_active_replicas_are_the_listed_ones_that_are_healthy(status: str) -> None:
    refused = status in (BUILDING, FAILED, DEPLOY_FAILED, DEACTIVATING, INACTIVE)
    serving = status in (ACTIVE, UPDATING, UNHEALTHY)
    assert active_replicas(deployment(status, A, B), UNREPORTED) == (2 if serving else 0)
    assert active_replicas(deployment(status, A, B, health=PROBED), UNREPORTED) == 0
    assert active_replicas(deployment(status, A, B), reported("http://gone", unhealthy=(A,))) == (1 if serving else 0)
    assert active_replicas(deployment(status, A, B, health=PROBED), reported()) == 0
    assert active_replicas(deployment(status, A, B, health=PROBED), reported(A, "http://gone")) == (0 if refused else 1)
