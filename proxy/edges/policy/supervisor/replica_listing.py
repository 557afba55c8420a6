"""Reads the policy replica as a whole: its version, row counts, a key by its prefix, secrets that cannot be opened.

Read-only; works beside a running proxy and without one. May read every row, so no request uses it.
"""

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from policy.keys.settings import MEMBERS
from policy.sealing import SealedWithUnknownKeyError, unseal
from policy.snapshot import KeyRow, RowKind, SecretRow, Wire, WorkspaceRow
from proxy.edges.policy.directory import SnapshotDirectory
from proxy.edges.policy.replica_file import ReplicaStamp, connect_readonly, lock_path, stamp_path
from proxy.edges.policy.row_values import decoded_key
from proxy.edges.policy.supervisor.group_rows import count_unreadable
from proxy.records.supervisor.policy_replica import ReplicaVersion
from runtime.file_locks import is_locked

# Until version 3 `rows` had all kinds: then the other two are views.
_COUNTS = """
SELECT kind, count(*) FROM rows WHERE kind NOT IN ('key', 'group') GROUP BY kind
UNION ALL SELECT 'key', count(*) FROM keys UNION ALL SELECT 'group', count(*) FROM groups
"""

_UNREADABLE_KEYS = f"""
SELECT count(DISTINCT keys.id) FROM keys, json_each(CAST(keys.body AS TEXT), '$.settings') AS member
WHERE member.key NOT IN ({", ".join("?" * len(MEMBERS))})
"""  # noqa: S608


class NoReplicaFileError(Exception):
    """There is no replica of policy that can be read; has a proxy on this machine reached control yet?"""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: {self.__doc__}")


@dataclass(frozen=True, slots=True)
class FixedGeneration:
    """A `GenerationSource` for a replica that is read once: the generation never changes."""

    generation_cell: tuple[int] = (0,)


class NoConfirmer:
    """A `Confirmer` without a supervisor: confirms nothing and reports nothing."""

    async def confirm(self, *, may_be_ours: bool = True) -> bool:
        return False

    async def confirm_keys(self, provider_id: str) -> bool:
        return False

    def report_damage(self) -> None:
        pass


class ReplicaListing:
    """An open replica. `directory` does the look-ups that the proxy itself does."""

    def __init__(self, path: Path, keys: Sequence[bytes]) -> None:
        self._path = path
        try:
            self._conn = connect_readonly(path)
            row = self._conn.execute("SELECT epoch, revision FROM standing").fetchone()
        except sqlite3.DatabaseError:
            raise NoReplicaFileError(path) from None
        if row is None:
            raise NoReplicaFileError(path)
        self.version = ReplicaVersion(*row)
        self.directory = SnapshotDirectory(path, keys, FixedGeneration(), NoConfirmer())

    def close(self) -> None:
        self.directory.close()
        self._conn.close()

    def rows(self) -> dict[str, int]:
        return {kind: count for kind, count in self._conn.execute(_COUNTS) if count}

    def key_with(self, prefix: str) -> KeyRow | None:
        """The key with this prefix. Raises `PolicyUnavailableError` if this version cannot read it."""
        query = "SELECT id, body FROM keys WHERE json_extract(CAST(body AS TEXT), '$.prefix') = ?"
        row = self._conn.execute(query, (prefix,)).fetchone()
        return decoded_key(*row) if row else None

    def unopened_secrets(self, keys: Sequence[bytes]) -> tuple[int, int]:
        """Return the number of secrets that none of these keys can open, and of all secrets."""
        query = "SELECT kind, id, body FROM rows WHERE kind IN (?, ?)"
        rows = self._conn.execute(query, (RowKind.SECRET.value, RowKind.WORKSPACE.value))
        sealed = (_sealed_in(kind, id, orjson.loads(body)) for kind, id, body in rows)
        opened = [_opens(keys, *one) for one in sealed if one is not None]
        return opened.count(False), len(opened)

    def unreadable_groups(self) -> int:
        """Return the number of groups that this version cannot read."""
        return count_unreadable(self._conn)

    def unreadable_keys(self) -> int:
        """Return the number of keys with settings that this version does not know."""
        (count,) = self._conn.execute(_UNREADABLE_KEYS, tuple(MEMBERS)).fetchone()
        return int(count)

    def confirmed_ago_s(self) -> float | None:
        """Seconds since control confirmed this policy; None if no proxy runs here or it has not reached control."""
        if not is_locked(lock_path(self._path)):
            return None
        stamp = ReplicaStamp(stamp_path(self._path))
        try:
            return time.monotonic() - stamp.confirmed_at_s if stamp.confirmed_at_s else None
        finally:
            stamp.close()


@contextlib.contextmanager
def open_replica_listing(path: Path, keys: Sequence[bytes]) -> Iterator[ReplicaListing]:
    listing = ReplicaListing(path, keys)
    try:
        yield listing
    finally:
        listing.close()


def _sealed_in(kind: str, id: str, body: Wire) -> tuple[str, str] | None:
    """(id, ciphertext) of an upstream credential, or of the secret that signs a workspace's results if it has one."""
    if kind == RowKind.SECRET:
        return id, SecretRow.from_wire(id, body).ciphertext
    signing = WorkspaceRow.from_wire(id, body).signing_secrets
    return None if signing is None else (id, signing.current)


def _opens(keys: Sequence[bytes], id: str, ciphertext: str) -> bool:
    try:
        unseal(keys, id, ciphertext)
    except SealedWithUnknownKeyError:
        return False
    return True
