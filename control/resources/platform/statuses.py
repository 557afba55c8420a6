"""The status that follows a change of the replicas, a report of the proxies, and each verb. Pure.

See docs/reference/management-api.md#statuses.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from control.errors import IllegalStatusError
from control.records.loads import Load
from control.records.models import DeploymentRecord
from policy.deployments import (
    ACTIVE,
    DEACTIVATING,
    DEPLOYING,
    FAILED,
    HAS_FAILED,
    INACTIVE,
    LOADING_MODEL,
    MOVES_FROM_OUTSIDE,
    SCALED_TO_ZERO,
    UNHEALTHY,
    UPDATING,
)

_SWITCHED_OFF = frozenset((INACTIVE, DEACTIVATING))
_SERVING = frozenset((ACTIVE, UPDATING, UNHEALTHY))


def with_status(record: DeploymentRecord, status: str) -> DeploymentRecord:
    """The deployment with this status. An error message lasts as long as `FAILED`, a wake schedule until `ACTIVE`."""
    if status != FAILED:
        record = replace(record, error_message=None)
    return rescheduled(replace(record, status=status)) if status == ACTIVE else replace(record, status=status)


def rescheduled(record: DeploymentRecord) -> DeploymentRecord:
    """The wake hook may be asked at once."""
    return replace(record, wake_next_ms=0, wake_pause_ms=0)


def with_replicas(record: DeploymentRecord, listed: tuple[str, ...], load: Load) -> DeploymentRecord:
    """The deployment with this list. One that is switched off keeps its status until it is activated."""
    changed = rescheduled(replace(record, replicas=listed))
    if record.status in _SWITCHED_OFF:
        return changed
    if not listed:
        return with_status(changed, SCALED_TO_ZERO)
    if record.health is None:
        return with_status(changed, ACTIVE)
    stay = replace(load, healthy=(load.healthy or frozenset()).intersection(record.replicas))
    if record.status in _SERVING and _healthy(changed, stay):
        return changed
    return after_report(with_status(changed, LOADING_MODEL), stay)


def with_settings(record: DeploymentRecord, settings: Mapping[str, Any]) -> DeploymentRecord:
    """The deployment with these fields. Replicas keep their standing until probes decide; they are healthy without."""
    changed = replace(record, **settings)
    if "wake_url" in settings:
        changed = rescheduled(changed)
    if record.replicas and record.status in (LOADING_MODEL, UNHEALTHY) and record.health and changed.health is None:
        return with_status(changed, ACTIVE)
    return changed


def after_report(record: DeploymentRecord, load: Load) -> DeploymentRecord:
    """The deployment after the proxies reported `load`."""
    return with_status(record, status) if (status := status_after(record, load)) != record.status else record


def status_after(record: DeploymentRecord, load: Load) -> str:
    """A replica that no machine mentions is not known to be unhealthy: it may have been listed a moment ago."""
    if record.status in (LOADING_MODEL, UNHEALTHY) and _healthy(record, load):
        return ACTIVE
    if record.status == ACTIVE and record.replicas and load.unhealthy.issuperset(record.replicas):
        return UNHEALTHY
    return record.status


def activated(record: DeploymentRecord, load: Load) -> DeploymentRecord:
    """Takes up the list of replicas again. A deployment that is neither switched off nor failed stays as it is."""
    if record.status not in _SWITCHED_OFF | HAS_FAILED:
        return rescheduled(record)
    if record.replicas:
        changed = with_status(record, ACTIVE if record.health is None else LOADING_MODEL)
    else:
        changed = with_status(record, DEPLOYING if record.wake_url is None else SCALED_TO_ZERO)
    return after_report(rescheduled(changed), load)


def deactivated(record: DeploymentRecord) -> DeploymentRecord:
    """Switch the deployment off: calls are refused, and the list of replicas is kept."""
    return with_status(record, INACTIVE)


def moved(record: DeploymentRecord, status: str, error_message: str | None) -> DeploymentRecord:
    """The deployment with the status that the launcher of its replicas reports."""
    legal = MOVES_FROM_OUTSIDE.get(record.status, frozenset())
    if status not in legal | {record.status}:
        raise IllegalStatusError(record.status, status, legal)
    changed = with_status(record, status) if status != record.status else record
    return changed if status != FAILED or error_message is None else replace(changed, error_message=error_message)


def _healthy(record: DeploymentRecord, load: Load) -> bool:
    return load.healthy is not None and not load.healthy.isdisjoint(record.replicas)
