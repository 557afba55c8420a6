"""Policy as a worker looks it up: synchronous, one row at a time, from the machine's replica file, read only.

Satisfies the stages' `Directory`. What is compiled is kept in a bounded cache that is emptied when the replica's stamp
turns; the whole is never held, so memory does not grow with the number of keys. What is not there is never remembered
as missing. It must not answer "no such thing" for trouble of ours: that is `PolicyUnavailableError`.
"""

import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson

from policy.groups import MAX_DEPTH, Group
from policy.limits.effective import Plan, plan_for
from policy.sealing import SealedWithUnknownKeyError, unseal
from policy.snapshot import EndpointRow, KeyRow, ModelRow, RowKind, SecretRow, WorkspaceRow, group_from_wire
from proxy.edges.policy.replica_file import connect_readonly
from proxy.exchange import KeyHolder, PolicyUnavailableError, SlugRoute

CACHE_WEIGHT = 6_000_000
"""Bytes of encoded rows whose compiled forms a worker keeps at most; compiled they take a few times as much."""
_ENTRY_WEIGHT = 300
# Plain strings: hashing a member of an enum costs more than the look-up.
_KEY, _ENDPOINT, _WORKSPACE = RowKind.KEY.value, RowKind.ENDPOINT.value, RowKind.WORKSPACE.value
_GROUP, _SECRET, _MODEL = RowKind.GROUP.value, RowKind.SECRET.value, RowKind.MODEL.value
_SELECT = "SELECT body FROM rows WHERE kind = ? AND id = ?"

Compiled = TypeVar("Compiled")
log = logging.getLogger(__name__)


class GenerationSource(Protocol):
    """Tells when the replica holds another generation: see `replica.ReplicaStamp`."""

    @property
    def generation_cell(self) -> Sequence[int]:
        """One number. In a cell, since it is read on every look-up, and a call would cost more than the rest of it."""
        ...


class Confirmer(Protocol):
    """Whoever can have the replica refreshed from control: in a worker, the channel to the supervisor."""

    async def confirm(self) -> bool:
        """Whether control has just confirmed the replica. False: it cannot be reached."""
        ...

    def report_damage(self) -> None:
        """The replica file cannot be read: have it looked at."""
        ...


class BoundedCache:
    """A bounded cache in two generations: what was used since the last turn survives the next one.

    One dict look-up for what is in use, no bookkeeping on a hit, and never more than `weight` in all. `made`: tables of
    what was made of entries. They are emptied at each turn, so that they keep nothing alive which is weighed no more.
    """

    def __init__(self, weight: int, made: Sequence[dict[Any, Any]] = ()) -> None:
        self._half = weight // 2
        self._made = made
        self._young: dict[Any, tuple[Any, int]] = {}
        self._old: dict[Any, tuple[Any, int]] = {}
        self._young_weight = 0

    def get(self, key: object) -> Any:
        entry = self._young.get(key)
        if entry is None:
            entry = self._old.get(key)
            if entry is None:
                return None
            self.put(key, *entry)
        return entry[0]

    def put(self, key: object, value: object, weight: int) -> None:
        self.make_room(weight)
        self._young[key] = (value, weight)

    def make_room(self, weight: int) -> None:
        """For one more of this weight, here or in a table of `made`."""
        if self._young_weight + weight > self._half:
            self._turn(self._young)
        self._young_weight += weight

    def clear(self) -> None:
        self._turn({})

    def _turn(self, old: dict[Any, tuple[Any, int]]) -> None:
        self._old, self._young, self._young_weight = old, {}, 0
        for table in self._made:
            table.clear()


class SnapshotDirectory:
    """One worker's view of the replica at `path`; opened on first use, so it may be built before the file is there."""

    def __init__(self, path: Path, keys: Sequence[bytes], stamp: GenerationSource, confirmer: Confirmer) -> None:
        self._path = path
        self._keys = tuple(keys)
        self._current = stamp.generation_cell
        self._confirmer = confirmer
        self._generation = -1
        self._file: tuple[int, int] | None = None
        self._conn: sqlite3.Connection | None = None
        # What calls look up, whole and under what they know it by: one dict access each.
        self._key_holders: dict[str, KeyHolder] = {}
        self._slug_routes: dict[tuple[str, str], SlugRoute] = {}
        self._secrets: dict[str, str] = {}
        self._models: dict[str, ModelRow] = {}
        self._cache = BoundedCache(CACHE_WEIGHT, (self._key_holders, self._slug_routes, self._secrets, self._models))

    def key_holder(self, digest: str) -> KeyHolder | None:
        """Whose key this is; None when there is no such key."""
        if self._current[0] != self._generation:
            self._look_anew()
        return self._key_holders.get(digest) or self._key_holder(digest)

    def slug_route(self, group_id: str, slug: str) -> SlugRoute | None:
        """Where the slug leads for the group; None when there is no such slug, or the group may not call it."""
        if self._current[0] != self._generation:
            self._look_anew()
        return self._slug_routes.get((group_id, slug)) or self._slug_route(group_id, slug)

    def secret(self, id: str) -> str | None:
        if self._current[0] != self._generation:
            self._look_anew()
        return self._secrets.get(id) or self._single(self._secrets, _SECRET, id, self._unsealed)

    def model(self, id: str) -> ModelRow | None:
        if self._current[0] != self._generation:
            self._look_anew()
        return self._models.get(id) or self._single(self._models, _MODEL, id, ModelRow.from_wire)

    def key(self, digest: str) -> KeyRow | None:
        return self._row(_KEY, digest, KeyRow.from_wire)

    def endpoint(self, slug: str) -> EndpointRow | None:
        return self._row(_ENDPOINT, slug, EndpointRow.from_wire)

    def workspace(self, id: str) -> WorkspaceRow | None:
        return self._row(_WORKSPACE, id, WorkspaceRow.from_wire)

    def group(self, id: str) -> Group | None:
        return self._row(_GROUP, id, group_from_wire)

    def slugs(self, group_id: str) -> tuple[str, ...]:
        group = self.group(group_id)
        return tuple(entry.slug for entry in group.models) if group else ()

    def plan(self, group_id: str, slug: str) -> Plan | None:
        """What binds a call of the group to the slug; None when the group may not call it."""
        if self._current[0] != self._generation:
            self._look_anew()
        found: Plan | None = self._cache.get((group_id, slug))
        if found is None:
            generation = self._generation
            path = self._path_to_root(group_id)
            found = plan_for(path, slug) if path else None
            if found is not None and generation == self._generation:
                self._cache.put((group_id, slug), found, _ENTRY_WEIGHT * (1 + len(found.bounds)))
        return found

    async def confirm_unknown(self) -> None:
        """Returns when control has confirmed the generation since; whoever asks looks again afterwards."""
        if not await self._confirmer.confirm():
            raise PolicyUnavailableError("control cannot be reached to confirm an unknown key")

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _key_holder(self, digest: str) -> KeyHolder | None:
        generation = self._generation
        key = self.key(digest)
        if key is None:
            return None
        workspace = self.workspace(key.workspace_id)
        group = self.group(key.group_id) if key.group_id is not None else None
        holder = KeyHolder(key, workspace, group)
        if workspace is not None and (group is not None or key.group_id is None):
            self._keep(self._key_holders, digest, holder, generation)
        return holder

    def _slug_route(self, group_id: str, slug: str) -> SlugRoute | None:
        generation = self._generation
        endpoint = self.endpoint(slug)
        plan = self.plan(group_id, slug)
        if endpoint is None or plan is None:
            return None
        route = SlugRoute(endpoint, plan)
        self._keep(self._slug_routes, (group_id, slug), route, generation)
        return route

    def _single(
        self, table: dict[str, Compiled], kind: str, id: str, compile: Callable[[str, Any], Compiled]
    ) -> Compiled | None:
        generation = self._generation
        found = self._row(kind, id, compile)
        if found is not None:
            self._keep(table, id, found, generation)
        return found

    def _keep(self, table: dict[Any, Any], key: object, made: object, generation: int) -> None:
        """Cache it, unless the generation changed meanwhile: it may then combine rows of two generations."""
        if generation == self._generation:
            self._cache.make_room(_ENTRY_WEIGHT)
            table[key] = made

    def _path_to_root(self, group_id: str) -> list[Group]:
        """The group and its ancestors; empty when there is no such group. A broken chain would drop limits: refused."""
        group = self.group(group_id)
        path = [group] if group else []
        while group is not None and group.parent_id is not None:
            group = self.group(group.parent_id)
            if group is None or len(path) >= MAX_DEPTH:
                raise PolicyUnavailableError("the limits of a group's ancestors cannot be read")
            path.append(group)
        return path

    def _row(self, kind: str, id: str, compile: Callable[[str, Any], Compiled]) -> Compiled | None:
        if self._current[0] != self._generation:
            self._look_anew()
        found: Compiled | None = self._cache.get((kind, id))
        if found is None:
            body = self._read(kind, id)
            if body is None:
                return None
            found = _decoded(kind, id, body, compile)
            if found is not None:
                self._cache.put((kind, id), found, _ENTRY_WEIGHT + len(body))
        return found

    def _unsealed(self, id: str, body: dict[str, Any]) -> str:
        return unseal(self._keys, id, SecretRow.from_wire(id, body).ciphertext)

    def _read(self, kind: str, id: str) -> bytes | None:
        if self._conn is None:
            raise PolicyUnavailableError("no replica of policy on this machine yet")
        try:
            # fetchall, not fetchone: a statement that is not at its end holds its read transaction open.
            rows = self._conn.execute(_SELECT, (kind, id)).fetchall()
        except sqlite3.DatabaseError as error:
            self._confirmer.report_damage()
            raise PolicyUnavailableError(f"the replica cannot be read: {error}") from None
        except UnicodeEncodeError:
            return None  # a lone surrogate out of a JSON body names nothing
        return rows[0][0] if rows else None

    def _look_anew(self) -> None:
        """The stamp has turned: forget what was compiled, and open the file anew if another one has taken its place."""
        self._generation = self._current[0]  # read before the rows are: a later change is noticed
        self._cache.clear()
        try:
            status = os.stat(self._path)
            file = (status.st_dev, status.st_ino)
            if self._conn is None or file != self._file:
                self.close()
                self._conn = _open_loaded(self._path)
                self._file = file
        except (OSError, sqlite3.DatabaseError) as error:
            self._generation = -1  # try again on the next look-up
            raise PolicyUnavailableError(f"the replica cannot be opened: {error}") from None


def _open_loaded(path: Path) -> sqlite3.Connection | None:
    """A connection to a replica that has followed control at least once; None while it is still empty."""
    conn = connect_readonly(path)
    if conn.execute("SELECT epoch FROM standing").fetchall():
        return conn
    conn.close()
    return None


def _decoded(kind: str, id: str, body: bytes, compile: Callable[[str, Any], Compiled]) -> Compiled | None:
    """The compiled row; None for one that this version does not understand (it was written for a newer one)."""
    try:
        return compile(id, orjson.loads(body))
    except SealedWithUnknownKeyError as error:
        raise PolicyUnavailableError(f"{kind} {id}: {error}") from None
    except (KeyError, ValueError, TypeError) as error:
        log.warning("skipped a %s row that this version cannot read: %s", kind, type(error).__name__)
        return None
