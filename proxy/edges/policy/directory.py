"""Looks up policy for a worker: synchronous, read-only, one row at a time from the machine's policy replica.

Compiled rows are kept in a bounded cache, which is emptied when the replica's generation changes. Memory does not grow
with the number of keys, and missing rows are never cached. A replica that cannot be read raises
`PolicyUnavailableError`; it must never look like a missing row.
"""

import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson

from policy.endpoints import UnusableCredentialError, check_credential
from policy.groups import MAX_DEPTH, Group
from policy.limits.effective import Plan, plan_for
from policy.sealing import SealedWithUnknownKeyError, unseal
from policy.snapshot import EndpointRow, KeyRow, ModelRow, RowKind, SecretRow, WorkspaceRow, group_from_wire
from proxy.directory_values import Identified, KeyHolder, Shape, SlugRoute
from proxy.edges.policy.replica_file import connect_readonly
from proxy.exchange import PolicyUnavailableError
from proxy.head_facts import HeadFacts
from proxy.refusals import TargetSecretUnusableError
from runtime.exhaustion import no_descriptor_is_left, out_of_descriptors

CACHE_WEIGHT = 6_000_000
"""How much a worker caches, in bytes of encoded rows. Compiled rows take a few times as much memory."""
_ENTRY_WEIGHT = 300
_SHAPE_WEIGHT = 600
# Plain strings: hashing an enum member costs more than the look-up.
_KEY, _ENDPOINT, _WORKSPACE = RowKind.KEY.value, RowKind.ENDPOINT.value, RowKind.WORKSPACE.value
_GROUP, _SECRET, _MODEL = RowKind.GROUP.value, RowKind.SECRET.value, RowKind.MODEL.value
_SELECT = "SELECT body FROM rows WHERE kind = ? AND id = ?"

Compiled = TypeVar("Compiled")
log = logging.getLogger(__name__)


class GenerationSource(Protocol):
    """Tells which generation the replica holds. Satisfied by `ReplicaStamp`."""

    @property
    def generation_cell(self) -> Sequence[int]:
        """One number, read on every look-up: indexing a memory cell is cheaper than a call."""
        ...


class Confirmer(Protocol):
    """Has the replica refreshed from control. In a worker this is the channel to the supervisor."""

    async def confirm(self) -> bool:
        """Return whether control has just confirmed the replica; False when it cannot be reached."""
        ...

    def report_damage(self) -> None:
        """Report that the replica file cannot be read, so that the supervisor checks it."""
        ...


class BoundedCache:
    """A cache in two halves, young and old. A full young half becomes the old one; entries in use move back.

    One dict look-up and no bookkeeping for an entry in use; never more than `weight` in all. `derived` are tables of
    objects that were made from entries. They are emptied with each turnover, because they keep entries alive.
    """

    def __init__(self, weight: int, derived: Sequence[dict[Any, Any]] = ()) -> None:
        self._half = weight // 2
        self._derived = derived
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
        """Make room for one more entry of this weight, here or in a `derived` table."""
        if self._young_weight + weight > self._half:
            self._turn_over(self._young)
        self._young_weight += weight

    def clear(self) -> None:
        self._turn_over({})

    def _turn_over(self, old: dict[Any, tuple[Any, int]]) -> None:
        self._old, self._young, self._young_weight = old, {}, 0
        for table in self._derived:
            table.clear()


class SnapshotDirectory:
    """One worker's view of the replica at `path`. The file is opened on first use, so it need not exist yet."""

    def __init__(self, path: Path, keys: Sequence[bytes], stamp: GenerationSource, confirmer: Confirmer) -> None:
        self._path = path
        self._keys = tuple(keys)
        self._generation_cell = stamp.generation_cell
        self._confirmer = confirmer
        self._generation = -1
        self._file: tuple[int, int] | None = None
        self._conn: sqlite3.Connection | None = None
        # What calls look up, complete and under the caller's own key: one dict access each.
        self._key_holders: dict[str, KeyHolder] = {}
        self._slug_routes: dict[tuple[str, str], SlugRoute] = {}
        self._secrets: dict[str, str] = {}
        self._unusable_secrets: dict[str, bool] = {}
        self._models: dict[str, ModelRow] = {}
        # What calls with heads that repeat look up first. It was made from the tables above.
        self._callers: dict[HeadFacts, Identified] = {}
        self._shapes: dict[tuple[HeadFacts, str], Shape] = {}
        derived = (self._key_holders, self._slug_routes, self._secrets, self._models, self._callers, self._shapes)
        self._cache = BoundedCache(CACHE_WEIGHT, (*derived, self._unusable_secrets))

    def key_holder(self, digest: str) -> KeyHolder | None:
        """Whose key this is; None when there is no such key."""
        if self._generation_cell[0] != self._generation:
            self._reload()
        return self._key_holders.get(digest) or self._key_holder(digest)

    def slug_route(self, group_id: str, slug: str) -> SlugRoute | None:
        """Where the slug leads for the group; None when there is no such slug, or the group may not call it."""
        if self._generation_cell[0] != self._generation:
            self._reload()
        return self._slug_routes.get((group_id, slug)) or self._slug_route(group_id, slug)

    def caller(self, facts: HeadFacts) -> Identified | None:
        """Who sends requests with this head, if that was kept under the present policy."""
        return self._callers.get(facts) if self._generation_cell[0] == self._generation else None

    def keep_caller(self, facts: HeadFacts, identified: Identified) -> None:
        """Keep who sends requests with this head, if that is what the table of keys says now."""
        holder = self._key_holders.get(identified.key.digest)
        if holder is not None and holder.identified is identified:
            self._cache.make_room(_ENTRY_WEIGHT)
            self._callers[facts] = identified

    def shape(self, facts: HeadFacts, slug: str) -> Shape | None:
        """What calls with this head and slug have in common, if that was kept under the present policy."""
        return self._shapes.get((facts, slug)) if self._generation_cell[0] == self._generation else None

    def keep_shape(self, facts: HeadFacts, shape: Shape) -> None:
        """Keep it if its route is the one that calls get now: policy may have changed while the call waited."""
        plan = shape.route.plan
        if self._slug_routes.get((plan.group_id, plan.slug)) is shape.route:
            self._cache.make_room(_SHAPE_WEIGHT)
            self._shapes[facts, plan.slug] = shape

    def secret(self, id: str) -> str | None:
        """The value of a target's secret. Raises `TargetSecretUnusableError` if no header field can carry it."""
        if self._generation_cell[0] != self._generation:
            self._reload()
        return self._secrets.get(id) or self._usable_secret(id)

    def model(self, id: str) -> ModelRow | None:
        if self._generation_cell[0] != self._generation:
            self._reload()
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
        if self._generation_cell[0] != self._generation:
            self._reload()
        found: Plan | None = self._cache.get((group_id, slug))
        if found is None:
            generation = self._generation
            path = self._path_to_root(group_id)
            found = plan_for(path, slug) if path else None
            if found is not None and generation == self._generation:
                self._cache.put((group_id, slug), found, _ENTRY_WEIGHT * (1 + len(found.bounds)))
        return found

    async def confirm_unknown(self) -> None:
        """Return when control has confirmed the replica after this call. The caller then looks again."""
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
            self._cache_derived(self._key_holders, digest, holder, generation)
        return holder

    def _slug_route(self, group_id: str, slug: str) -> SlugRoute | None:
        generation = self._generation
        endpoint = self.endpoint(slug)
        plan = self.plan(group_id, slug)
        if endpoint is None or plan is None:
            return None
        route = SlugRoute(endpoint, plan)
        self._cache_derived(self._slug_routes, (group_id, slug), route, generation)
        return route

    def _single(
        self, table: dict[str, Compiled], kind: str, id: str, compile: Callable[[str, Any], Compiled]
    ) -> Compiled | None:
        generation = self._generation
        found = self._row(kind, id, compile)
        if found is not None:
            self._cache_derived(table, id, found, generation)
        return found

    def _cache_derived(self, table: dict[Any, Any], key: object, derived: object, generation: int) -> None:
        """Cache it, unless the generation changed meanwhile: it may then combine rows of two generations."""
        if generation == self._generation:
            self._cache.make_room(_ENTRY_WEIGHT)
            table[key] = derived

    def _path_to_root(self, group_id: str) -> list[Group]:
        """The group and its ancestors; empty if there is no such group. A broken chain raises: it would drop limits."""
        group = self.group(group_id)
        path = [group] if group else []
        while group is not None and group.parent_id is not None:
            group = self.group(group.parent_id)
            if group is None or len(path) >= MAX_DEPTH:
                raise PolicyUnavailableError("the limits of a group's ancestors cannot be read")
            path.append(group)
        return path

    def _row(self, kind: str, id: str, compile: Callable[[str, Any], Compiled]) -> Compiled | None:
        if self._generation_cell[0] != self._generation:
            self._reload()
        found: Compiled | None = self._cache.get((kind, id))
        if found is None:
            body = self._read(kind, id)
            if body is None:
                return None
            found = _decoded(kind, id, body, compile)
            if found is not None:
                self._cache.put((kind, id), found, _ENTRY_WEIGHT + len(body))
        return found

    def _usable_secret(self, id: str) -> str | None:
        if id in self._unusable_secrets:
            raise TargetSecretUnusableError
        try:
            return self._single(self._secrets, _SECRET, id, self._unsealed)
        except UnusableCredentialError as error:
            log.warning(
                "Secret %s cannot be sent in a header field (%s); calls of its endpoints are answered 503."
                " Store its value again.",
                id,
                error,
            )
            self._cache_derived(self._unusable_secrets, id, True, self._generation)
            raise TargetSecretUnusableError from None

    def _unsealed(self, id: str, body: dict[str, Any]) -> str:
        value = unseal(self._keys, id, SecretRow.from_wire(id, body).ciphertext)
        check_credential(value)
        return value

    def _read(self, kind: str, id: str) -> bytes | None:
        if self._conn is None:
            raise PolicyUnavailableError("no policy replica on this machine yet")
        try:
            # fetchall, not fetchone: an unfinished statement keeps its read transaction open.
            rows = self._conn.execute(_SELECT, (kind, id)).fetchall()
        except sqlite3.DatabaseError as error:
            self._confirmer.report_damage()
            raise PolicyUnavailableError(f"the replica cannot be read: {error}") from None
        except UnicodeEncodeError:
            return None  # a lone surrogate from a JSON body matches no row
        return rows[0][0] if rows else None

    def _reload(self) -> None:
        """Empty the cache after a change of generation, and reopen the file if it was replaced."""
        self._generation = self._generation_cell[0]  # read before the rows, so that a later change is noticed
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
            if no_descriptor_is_left():  # SQLite does not say so
                raise out_of_descriptors() from None
            raise PolicyUnavailableError(f"the replica cannot be opened: {error}") from None


def _open_loaded(path: Path) -> sqlite3.Connection | None:
    """A connection to a replica that holds policy; None while it is still empty."""
    conn = connect_readonly(path)
    if conn.execute("SELECT epoch FROM standing").fetchall():
        return conn
    conn.close()
    return None


def _decoded(kind: str, id: str, body: bytes, compile: Callable[[str, Any], Compiled]) -> Compiled | None:
    """The compiled row; None for a row of a newer version that this one does not understand."""
    try:
        return compile(id, orjson.loads(body))
    except SealedWithUnknownKeyError as error:
        raise PolicyUnavailableError(f"{kind} {id}: {error}") from None
    except (KeyError, ValueError, TypeError) as error:
        log.warning(
            "Skipped a %s row that this version cannot read (%s). Update this proxy.", kind, type(error).__name__
        )
        return None
