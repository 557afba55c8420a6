"""The times at which a deployment's wake hook is asked, and what its answer changes.

A need is one deployment with parked calls, or one `wake`. Control processes share its schedule in the deployment's row:
who moves `wake_next_ms` asks; nobody else does before that time. If the one who asks dies, the time passes as well.

See docs/reference/management-api.md#wake-hooks.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from control.edges.sql import model_rows
from control.edges.sql.events.clock import database_ms
from control.edges.sql.store import Store, WriteTx
from control.records.models import DeploymentRecord
from control.resources.platform.statuses import with_status
from policy.deployments import DEPLOYING, SCALED_TO_ZERO, WAKING_UP

Reason = Literal["request", "wake"]
FIRST_REPEAT_MS = 10_000
FIRST_RETRY_MS = 1_000
LONGEST_PAUSE_MS = 60_000
"""The pause after an answer and after a failure. Each doubles, up to the longest."""
LEASE_MS = 15_000
"""The time that the process that asks may take. Longer than the client's timeout."""
_CLOCK_JUMP_MS = 2 * LONGEST_PAUSE_MS
"""The longest plausible pause: a later `wake_next_ms` is of a clock that was set back."""


@dataclass(frozen=True, slots=True)
class WakeRequest:
    """A deployment that needs a replica. `parked`: calls that wait for one, over all machines."""

    workspace_id: str
    deployment: DeploymentRecord
    reason: Reason
    parked: int


@dataclass(frozen=True, slots=True)
class WakeClaim:
    """The right to ask the hook once. `until_ms` is in the deployment's row while it lasts."""

    model_id: str
    deployment_id: str
    wake_url: str
    until_ms: int


class NoClaim(Enum):
    """The reason why the hook is not asked now."""

    NOT_NEEDED = "the deployment has no hook, serves, or its launcher has answered"
    NOT_YET = "the hook is being asked, or failed a moment ago"


def has_wake_hook(record: DeploymentRecord) -> bool:
    """Return whether parked calls of the deployment are a reason to ask its hook."""
    scaled_to_zero = record.status in (SCALED_TO_ZERO, WAKING_UP) or (
        record.status == DEPLOYING and not record.replicas
    )
    return record.wake_url is not None and scaled_to_zero


def is_due(record: DeploymentRecord, now_ms: int) -> bool:
    """Return whether the hook may be asked at this time of the database's clock."""
    return not now_ms < record.wake_next_ms < now_ms + _CLOCK_JUMP_MS


def pause_after(earlier_ms: int, succeeded: bool) -> int:
    """The pause until the hook may be asked again. Negative after a failure, so that the two schedules stay apart."""
    if succeeded:
        return min(max(FIRST_REPEAT_MS, 2 * earlier_ms), LONGEST_PAUSE_MS)
    return -min(max(FIRST_RETRY_MS, -2 * earlier_ms), LONGEST_PAUSE_MS)


async def claim_wake(store: Store, request: WakeRequest) -> WakeClaim | NoClaim:
    """Claim the hook for this process, or say why it is not this process' turn to ask."""
    model_id = request.deployment.model_id
    id = request.deployment.id

    async def work(tx: WriteTx) -> WakeClaim | NoClaim:
        record = await model_rows.lock_deployment(tx, model_id, id)
        if record is None or record.wake_url is None or not has_wake_hook(record):
            return NoClaim.NOT_NEEDED
        now_ms = await database_ms(tx.conn)
        if not is_due(record, now_ms):
            return NoClaim.NOT_NEEDED if record.wake_pause_ms > 0 else NoClaim.NOT_YET
        # A need that comes after a quiet while begins the schedule anew.
        is_new = now_ms > record.wake_next_ms + LONGEST_PAUSE_MS
        until_ms = now_ms + LEASE_MS
        await model_rows.schedule_wake(tx, id, until_ms, 0 if is_new else record.wake_pause_ms)
        return WakeClaim(model_id, id, record.wake_url, until_ms)

    return await store.transact(work)


async def finish_wake(store: Store, claim: WakeClaim, succeeded: bool) -> int:
    """Record the hook's answer; returns the pause. Without effect if the schedule was reset meanwhile."""

    async def work(tx: WriteTx) -> int:
        model = await model_rows.lock_reported_model(tx, claim.model_id)
        old = await model_rows.lock_deployment(tx, claim.model_id, claim.deployment_id) if model else None
        if model is None or old is None or old.wake_next_ms != claim.until_ms:
            return 0
        pause_ms = pause_after(old.wake_pause_ms, succeeded)
        changed = old
        if succeeded and has_wake_hook(old) and old.status != WAKING_UP:
            changed = replace(with_status(old, WAKING_UP), updated_at_ms=max(tx.now_ms, old.updated_at_ms + 1))
        next_ms = await database_ms(tx.conn) + abs(pause_ms)
        await model_rows.update_deployment(
            tx, model, old, replace(changed, wake_next_ms=next_ms, wake_pause_ms=pause_ms)
        )
        return abs(pause_ms)

    return await store.transact(work)
