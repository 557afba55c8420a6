"""Notes in the database which keys this process of control seals and opens with, for commands in other shells.

Of several processes of control the last one that started, or read its keys again, is noted: they are to have the same.
"""

import asyncio
import logging
from collections.abc import Sequence

from control.edges.sql import secret_rows
from control.edges.sql.store import Store, WriteTx
from control.errors import DatabaseUnavailableError
from policy.sealing import key_ids
from runtime.log_lines import OutageLog

LOOK_AGAIN_S = 0.5
log = logging.getLogger(__name__)


class KeyNotes:
    """`keys`: those of the process, which may change while it runs."""

    def __init__(self, store: Store, keys: Sequence[bytes]) -> None:
        self._store = store
        self._keys = keys
        self._noted: Sequence[bytes] = ()

    async def note_for_ever(self) -> None:
        """Note the keys at the start, and whenever they have changed."""
        outage = OutageLog(log)
        while True:
            try:
                await self.note()
            except DatabaseUnavailableError as error:
                outage.begins(
                    f"The ids of control's secret keys cannot be noted ({error.reason}); `tollgate secrets rotate-key`"
                    " waits for them. Retrying."
                )
            else:
                outage.ends("The ids of control's secret keys are noted again.")
            await asyncio.sleep(LOOK_AGAIN_S)

    async def note(self) -> None:
        """Note the keys if they are not those that this process noted last."""
        present = self._keys[:]
        if present == self._noted:
            return
        ids = key_ids(present)
        async with self._store.read() as conn:
            is_known = await secret_rows.noted_key_ids(conn) == ids
        if not is_known:  # a database that can be read only needs no note of what it knows

            async def work(tx: WriteTx) -> None:
                await secret_rows.note_key_ids(tx, ids)

            await self._store.transact(work)
        self._noted = present
