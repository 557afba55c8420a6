"""Changes the keys in `secret.key` of a data directory, while the product runs or not, and seals everything anew.

After each step everything opens, so a rotation that was cut off goes on where it was (`KeyRotation.rotate`).

See docs/operating.md#rotating-the-secret-key.
"""

import asyncio
import base64
import secrets
import time
from collections.abc import Sequence
from typing import Any

from control.edges.inspection.process_look import replica_revision
from control.edges.process import up_record
from control.edges.process.data_directory import DataDirectory, DataDirectoryError
from control.edges.sql.store import Store, current_revision
from control.operator.bootstrap import Database
from control.resources.sealing.resealing import SealedLook, SealingKeyError, look, noted_ids, reencrypt_all
from policy.sealing import KEY_BYTES, key_ids, parse_keys
from runtime.private_files import replace_file
from runtime.secret_keys import has_secret_keys

PATIENCE_S = 60.0
_POLL_S = 0.1
_ELSEWHERE = (
    "Where the keys come from TOLLGATE_SECRET_KEY, put a new one in front of the old one (NEW,OLD) for control and"
    " the proxies, restart them, and run `tollgate secrets reencrypt` (docs/operating.md#rotating-the-secret-key)"
)


class KeyRotation:
    """A rotation of the keys of the data directory that the command names."""

    def __init__(self, database: Database) -> None:
        self._directory = DataDirectory(database.data)
        self._database = database

    def check_source(self) -> None:
        """Raise `SealingKeyError` unless the keys are those of the data directory's file, for its database."""
        file = self._directory.secret_key
        if has_secret_keys(self._database.environment):
            raise SealingKeyError(
                f"this shell sets TOLLGATE_SECRET_KEY or TOLLGATE_SECRET_KEY_FILE, so the keys are not those of {file}."
                f" Nothing was changed.\nIf control and the proxies run without it, unset it. {_ELSEWHERE}"
            )
        if not file.exists():
            raise SealingKeyError(f"there is no {file}: name the directory of `tollgate up` with --data.\n{_ELSEWHERE}")
        try:
            record = up_record.read(self._directory)
        except DataDirectoryError:
            return
        if record.has_own_database != (self._database.database_url is None):
            where = "in its data directory" if record.has_own_database else "elsewhere"
            raise SealingKeyError(
                f"the `tollgate up` that serves {self._directory.path} has its database {where}, and this command would"
                " work on another one. Nothing was changed.\nRun it with the --database-url of `tollgate up`, or"
                " without one if that has none"
            )

    async def rotate(self, store: Store) -> dict[str, Any]:
        """Put a new key in front, unless an earlier rotation was cut off; then seal everything under the first one.

        1. The file has the new key in front of the others. Its readers open everything as before.
        2. Control, if it runs, has read it, and seals under it. Proxies read the file when a secret needs it.
        3. Everything is sealed under it, in one transaction.
        """
        with self._directory.changing_secret_keys():
            keys = self._keys()
            sealed = await self._checked(store, keys)
            if not (len(keys) > 1 and sealed.not_under_first):
                keys = (secrets.token_bytes(KEY_BYTES), *keys)
                self._write(keys)
            return await self._reseal(store, keys)

    async def drop_old(self, store: Store) -> dict[str, Any]:
        """Finish a rotation that was cut off, then drop all keys but the first one."""
        with self._directory.changing_secret_keys():
            keys = self._keys()
            sealed = await self._checked(store, keys)
            if sealed.not_under_first or not sealed.noted or sealed.noted[0] != key_ids(keys)[0]:
                await self._reseal(store, keys)
            await self._until_fetched(store)
            self._write(keys[:1])
            await self._until_noted(store, keys[:1], "It opens with the old ones until it reads the file again")
            return _summary(0, keys[:1])

    def _keys(self) -> tuple[bytes, ...]:
        return parse_keys(self._directory.kept(self._directory.secret_key.name))

    def _write(self, keys: Sequence[bytes]) -> None:
        replace_file(self._directory.secret_key, ",".join(base64.b64encode(key).decode() for key in keys) + "\n")

    async def _checked(self, store: Store, keys: Sequence[bytes]) -> SealedLook:
        """Everything that is sealed. Raises `SealingKeyError` if these are not the keys of it, or of control."""
        file = self._directory.secret_key
        sealed = await look(store, keys)
        if sealed.noted and sealed.noted[0] not in key_ids(keys):
            raise SealingKeyError(
                f"control seals under key {sealed.noted[0]}, which is not in {file}: it was started with a"
                " TOLLGATE_SECRET_KEY of its own, and could not open what this command seals. Nothing was changed.\n"
                + _ELSEWHERE
            )
        if sealed.unopened:
            raise SealingKeyError(
                f"no key in {file} opens {sealed.unopened} of the {sealed.total} sealed values. Nothing was changed.\n"
                "Put the key that sealed them into the file, behind a comma, or store those secrets again:"
                " `tollgate doctor`"
            )
        return sealed

    async def _reseal(self, store: Store, keys: Sequence[bytes]) -> dict[str, Any]:
        await self._until_noted(store, keys, "Nothing is sealed under the new key yet, and everything opens")
        result = await reencrypt_all(store, keys)
        return _summary(result["reencrypted"], keys)

    async def _until_noted(self, store: Store, keys: Sequence[bytes], meanwhile: str) -> None:
        """Wait until control has these keys, if it runs here."""
        ids = key_ids(keys)
        give_up_at = time.monotonic() + PATIENCE_S
        while self._directory.is_served() and await noted_ids(store) != ids:
            if time.monotonic() > give_up_at:
                raise SealingKeyError(
                    f"control has not read {self._directory.secret_key} again within {PATIENCE_S:.0f} s. {meanwhile}.\n"
                    "See whether control runs (`tollgate doctor`), or restart `tollgate up`; then run this again:"
                    " it goes on from here"
                )
            await asyncio.sleep(_POLL_S)

    async def _until_fetched(self, store: Store) -> None:
        """Wait until the proxy of this machine has what was sealed last: an old key still opens what it had before."""
        async with store.read() as conn:
            revision = await current_revision(conn)
        replica = self._directory.replica
        give_up_at = time.monotonic() + PATIENCE_S
        while replica.exists() and await replica_revision(replica) < revision:
            if time.monotonic() > give_up_at or not self._directory.is_served():
                raise SealingKeyError(
                    "the proxy has not fetched what was sealed last, and would not open its secrets without the old"
                    " keys. They are kept.\nStart `tollgate up`, wait until `tollgate doctor` finds nothing, and run"
                    " this again"
                )
            await asyncio.sleep(_POLL_S)


def _summary(reencrypted: int, keys: Sequence[bytes]) -> dict[str, Any]:
    first, *others = key_ids(keys)
    return {"reencrypted": reencrypted, "key": first, "old_keys": others}
