"""Watches the limits of groups with percents, and tells of those that have refused calls.

Each turn looks at groups whose calls were committed or that were changed since the last one, at those with a limit that
has refused, and at the next few of a round over all watched groups. The first is quick; the round misses nothing: it
covers restarts of control, the ingests of other control processes, and counters that Redis got late.

See docs/decisions/0078-alerts-are-looked-for.md.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from control.edges.sql.alerts import rows
from control.edges.sql.alerts.watched_groups import RoundPlace, next_watched, with_percents
from control.edges.sql.group_rows import workspaces_of
from control.edges.sql.store import Connection, Store, UncancelledWork
from control.errors import DatabaseUnavailableError, UsageUnavailableError
from control.resources.alerts.looks import FigureSources, look_at
from runtime.log_lines import OutageLog

log = logging.getLogger(__name__)

TURN_S = 1.0
ROUND_S = 60.0
"""The shortest time of a round."""
NOTED_AT_ONCE = 500
"""Groups of a turn whose calls were committed: their paths are read, and only watched ones are looked at."""
REFUSALS_AT_ONCE = 100
ROUND_AT_ONCE = 100
LOOKED_AT_ONCE = 50
"""Groups of one workspace that are read together: each may have thousands of limits."""
_CONSEQUENCE = "Alerts on limits are paused. They go on when it is back."


class NotedGroups:
    """Groups that are to be looked at, by workspace. Each is in here once."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, None]] = {}

    def add(self, places: Iterable[tuple[str, str]]) -> None:
        """Note groups by their workspace's id and their own."""
        for workspace_id, group_id in places:
            self._groups.setdefault(workspace_id, {})[group_id] = None

    def pop(self, most: int) -> dict[str, list[str]]:
        """Remove and return at most `most` groups, of each workspace as many as of the others if it has them."""
        portions: dict[str, list[str]] = {}
        while most > 0 and self._groups:
            share = max(1, most // len(self._groups))
            for workspace_id, groups in list(self._groups.items())[:most]:
                ids = list(groups)[:share]
                for id in ids:
                    del groups[id]
                portions.setdefault(workspace_id, []).extend(ids)
                most -= len(ids)
                del self._groups[workspace_id]
                if groups:  # behind the others: whoever has more than its share waits
                    self._groups[workspace_id] = groups
        return portions


class AlertWatch:
    """The watch of one control process. `note` may be called at any time. `count` is called with each message's type.

    `sources`: None without a Redis: then nothing counts, and there is nothing to watch.
    """

    def __init__(self, store: Store, sources: FigureSources | None, count: Callable[[str], None]) -> None:
        self._store = store
        self._sources = sources
        self._count = count
        self._noted = NotedGroups()
        self._outage = OutageLog(log)
        self._place: RoundPlace | None = RoundPlace()
        self._turns_to_round = 0
        self._transactions = UncancelledWork()

    def note(self, places: Iterable[tuple[str, str]]) -> None:
        """Have groups looked at soon: their workspace's id and their own."""
        if self._sources is not None:
            self._noted.add(places)

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                await asyncio.sleep(TURN_S)
                await self._try_look()
        finally:
            await self._transactions.finish()

    async def _try_look(self) -> None:
        try:
            await self._transactions.run(self.look())
        except DatabaseUnavailableError as error:
            self._outage.begins(f"Database is unreachable ({error.reason}). {_CONSEQUENCE} Check the database.")
        except UsageUnavailableError as error:
            self._outage.begins(f"{error.message} {_CONSEQUENCE} Check the Redis server and network.")
        except Exception:  # a bug must not end all alerts
            log.exception("Alerts on limits failed; they go on in %.0f s. Please report this bug.", TURN_S)
        else:
            self._outage.ends("Alerts on limits go on: database and Redis answer again.")

    async def look(self) -> None:
        """Look at what is due. What could not be looked at is due again, but for a bug: it must not stop the round."""
        if self._sources is None:
            return
        noted = self._noted.pop(NOTED_AT_ONCE)
        places = {(workspace_id, id) for workspace_id, ids in noted.items() for id in ids}
        round_place = self._place
        try:
            async with self._store.read() as conn:
                watched = await with_percents(conn, [id for _, id in places])
                refusing = await rows.refusing_groups(conn, REFUSALS_AT_ONCE)
                of_round, self._place = await self._next_of_round(conn)
                workspaces = await workspaces_of(conn, {*watched, *refusing, *of_round})
            for workspace_id in sorted(set(workspaces.values())):
                await self._look_at(self._sources, [id for id, of in workspaces.items() if of == workspace_id])
            await self._forget([id for id in refusing if id not in workspaces])
        except (DatabaseUnavailableError, UsageUnavailableError):
            self._noted.add(places)
            self._place = round_place
            raise
        self._turns_to_round = max(0, self._turns_to_round - 1)

    async def _next_of_round(self, conn: Connection) -> tuple[list[str], RoundPlace | None]:
        """The next groups of the round over all watched ones; none while the next round is not due."""
        if self._place is None:
            if self._turns_to_round:
                return [], None
            self._place = RoundPlace()
        if self._place == RoundPlace():
            self._turns_to_round = int(ROUND_S / TURN_S)
        return await next_watched(conn, self._place, ROUND_AT_ONCE)

    async def _look_at(self, sources: FigureSources, group_ids: Sequence[str]) -> None:
        for start in range(0, len(group_ids), LOOKED_AT_ONCE):
            for alert in await look_at(self._store, sources, group_ids[start : start + LOOKED_AT_ONCE]):
                self._count(alert.message_type)

    async def _forget(self, group_ids: Sequence[str]) -> None:
        """Forget refusals of groups that were deleted."""
        if group_ids:
            async with self._store.write() as tx:
                await rows.forget_refusals(tx, group_ids)
