"""Health at a glance: how much of each part of a workspace does not work now.

See docs/reference/management-api.md#health-at-a-glance.
"""

from collections.abc import Sequence
from typing import NamedTuple

from control.edges.sql.spend.machines import all_machines
from control.edges.sql.store import Connection, Store, now_ms
from control.edges.sql.traffic import health
from control.edges.sql.training import backend_rows
from control.resources.spend.machines import LIVE_MS
from control.resources.training.backends import REPORT_VALID_MS

MAX_FAILING = 1_000
"""The most failing endpoints that are counted."""
MAX_NAMES = 3
GIVEN_UP_MS = 86_400_000
"""The time for which a webhook counts as failing after a message to it was given up."""
LAUNCH_MS = 600_000
"""The time after which a launch that is not over counts as failing."""


class PartHealth(NamedTuple):
    """The health of a part: of `total`, `failing` do not work now; `names` are the first of them."""

    part: str
    total: int
    failing: int
    names: Sequence[str] = ()


async def read_health(store: Store, workspace_id: str) -> Sequence[PartHealth]:
    """The health of each part that the database tells of. What reports is late by its last report."""
    at_ms = now_ms()
    async with store.read() as conn:
        webhooks = await health.failing_webhooks(conn, workspace_id, at_ms - GIVEN_UP_MS)
        slugs = await health.failing_endpoints(conn, workspace_id, MAX_FAILING)
        launches = await health.failing_launches(conn, workspace_id, at_ms - LAUNCH_MS)
        return (
            _of("webhooks", await health.count_webhooks(conn, workspace_id), webhooks),
            _of("endpoints", await health.count_endpoints(conn, workspace_id), slugs),
            _of("launchers", await health.count_launched(conn, workspace_id), launches),
            await _proxy_machines(conn, at_ms),
            await _trainer(conn, at_ms),
        )


def _of(part: str, total: int, failing: Sequence[str]) -> PartHealth:
    return PartHealth(part, total, len(failing), failing[:MAX_NAMES])


async def _proxy_machines(conn: Connection, at_ms: int) -> PartHealth:
    """The machines of all workspaces, so without their names."""
    machines = await all_machines(conn)
    return PartHealth("proxies", len(machines), sum(at_ms - one.reported_at_ms > LIVE_MS for one in machines))


async def _trainer(conn: Connection, at_ms: int) -> PartHealth:
    backend = await backend_rows.find_backend(conn)
    if backend is None:
        return PartHealth("trainer", 0, 0)
    is_away = backend.reason is not None or at_ms - backend.reported_at_ms > REPORT_VALID_MS
    return PartHealth("trainer", 1, int(is_away))
