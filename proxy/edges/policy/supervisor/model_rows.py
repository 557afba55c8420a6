"""Every model row of the policy replica in the supervisor's memory, compiled. Listeners learn of each change.

Read from the file once; afterwards `WatchedReplica` passes on what each refresh from control writes. So a change costs
in proportion to the models that changed, however many there are. A row that cannot be read counts as deleted.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from policy.snapshot import ModelRow, Row, RowKind, Wire
from proxy.edges.policy.replica_file import connect_readonly
from proxy.errors import PolicyUnavailableError
from proxy.records.supervisor.policy_replica import ReplicaStore, ReplicaUpdate, ReplicaVersion
from runtime.log_lines import cause_of

SLICE = 32
"""The most changes that are applied at once."""
_MODEL = RowKind.MODEL.value
_SELECT = "SELECT id, body FROM rows WHERE kind = ?"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelChange:
    """One model before and after a change. None: it did not exist, or it was deleted."""

    id: str
    before: ModelRow | None
    after: ModelRow | None


Listener = Callable[[Sequence[ModelChange]], None]


class ModelRows:
    """The machine's platform models. Listeners are called on the event loop, with a slice of the changes at a time."""

    def __init__(self) -> None:
        self._rows: dict[str, ModelRow] = {}
        self._listeners: list[Listener] = []
        self._loaded = False

    def get(self, model_id: str) -> ModelRow | None:
        """Find a model. Raises `PolicyUnavailableError` before any rows were read."""
        if not self._loaded:
            raise PolicyUnavailableError("the models of the policy replica cannot be read")
        return self._rows.get(model_id)

    def listen(self, listener: Listener) -> None:
        """Call `listener` after each change. Its first changes are the models that are there already."""
        self._listeners.append(listener)
        if self._rows:
            listener([ModelChange(row.id, None, row) for row in self._rows.values()])

    async def load(self, path: Path) -> bool:
        """Read the replica's file, as the last supervisor left it. Returns False if it cannot be read."""
        try:
            rows = await asyncio.to_thread(_read_all, path)
        except sqlite3.DatabaseError as error:
            log.warning(
                "Models cannot be read from the policy replica (%s); platform models are not served until it is rebuilt"
                " from control.",
                cause_of(error),
            )
            return False
        await self.apply_in_slices(self.changes(rows, reset=True))
        return True

    async def apply_in_slices(self, changes: Sequence[ModelChange]) -> None:
        """Apply changes in slices of some milliseconds: thousands of them must not hold up the calls of the machine."""
        self._loaded = True
        for start in range(0, len(changes), SLICE):
            self.apply(changes[start : start + SLICE])
            await asyncio.sleep(0)

    def changes(self, bodies: dict[str, Wire | None], *, reset: bool) -> list[ModelChange]:
        """Return how these rows differ from the present. With `reset`, models that are not among them were deleted."""
        deletions = {id: None for id in self._rows if id not in bodies} if reset else {}
        rows = [(id, _compiled(id, body)) for id, body in (deletions | bodies).items()]
        changes = (_change(id, self._rows.get(id), after) for id, after in rows)
        return [change for change in changes if change.before != change.after]

    def apply(self, changes: Sequence[ModelChange]) -> None:
        """Apply changes and pass them to the listeners. Call it on the event loop."""
        self._loaded = True
        for change in changes:
            if change.after is None:
                del self._rows[change.id]
            else:
                self._rows[change.id] = change.after
        if changes:
            for listener in self._listeners:
                listener(changes)


class WatchedReplica:
    """A `ReplicaStore` that passes each change of a model on to `models`.

    A worker reads a new endpoint as soon as the file has it, and asks for its model. So models know of a row before it
    is committed, and keep one until its deletion is committed.
    """

    def __init__(self, replica: ReplicaStore, models: ModelRows) -> None:
        self._replica = replica
        self._models = models
        self._loop = asyncio.get_running_loop()

    @property
    def version(self) -> ReplicaVersion:
        return self._replica.version

    def confirm(self, now_s: float) -> None:
        self._replica.confirm(now_s)

    def begin_update(self, *, reset: bool) -> "WatchedUpdate":
        return WatchedUpdate(self, self._replica.begin_update(reset=reset), reset=reset)

    def changes(self, bodies: dict[str, Wire | None], *, reset: bool) -> tuple[list[ModelChange], list[ModelChange]]:
        """Compare these rows with the present models. Return the changes, and the deletions apart."""
        changes = self._models.changes(bodies, reset=reset)
        return [one for one in changes if one.after is not None], [one for one in changes if one.after is None]

    def tell(self, changes: list[ModelChange]) -> None:
        """Return when listeners know. Called in the refresher's thread, one refresh at a time: no change overtakes."""
        asyncio.run_coroutine_threadsafe(self._models.apply_in_slices(changes), self._loop).result()


class WatchedUpdate:
    """A `ReplicaUpdate` that remembers the models it writes.

    If the commit fails, models are ahead of the file until the next refresh, which brings the same rows.
    """

    def __init__(self, watched: WatchedReplica, update: ReplicaUpdate, *, reset: bool) -> None:
        self._watched = watched
        self._update = update
        self._reset = reset
        self._bodies: dict[str, Wire | None] = {}

    def add(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        self._update.add(rows)
        self._bodies |= {row.id: row.body for row in rows if row.kind == _MODEL}

    def commit(self, version: ReplicaVersion) -> None:
        if not self._bodies and not self._reset:
            self._update.commit(version)
            return
        changes, deletions = self._watched.changes(self._bodies, reset=self._reset)
        self._watched.tell(changes)
        self._update.commit(version)
        self._watched.tell(deletions)

    def discard(self) -> None:
        self._update.discard()


def _read_all(path: Path) -> dict[str, Wire | None]:
    with contextlib.closing(connect_readonly(path)) as conn:
        return {id: orjson.loads(body) for id, body in conn.execute(_SELECT, (_MODEL,))}


def _change(id: str, before: ModelRow | None, after: ModelRow | None) -> ModelChange:
    """Return the change. Equal parts are the same objects in both rows, so that listeners skip them at no cost."""
    if before is not None and after is not None:
        deployments_before = before.deployments
        deployments = {
            id: deployments_before[id] if deployments_before.get(id) == one else one
            for id, one in after.deployments.items()
        }
        environments = before.environments if before.environments == after.environments else after.environments
        after = replace(after, deployments=deployments, environments=environments)
    return ModelChange(id, before, after)


def _compiled(id: str, body: Wire | None) -> ModelRow | None:
    if body is None:
        return None
    try:
        return ModelRow.from_wire(id, body)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        log.warning("Skipped a model row that this version cannot read (%s). Update this proxy.", type(error).__name__)
        return None
