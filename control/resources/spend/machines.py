"""The machines of the proxy: what each tells of its workers, and which are forgotten.

See docs/reference/money.md#how-spend-is-counted.
"""

import logging
from collections.abc import Collection

from control.edges.sql.spend.machines import delete_machines, put_machine, silent_machines
from control.edges.sql.store import Store, UncancelledWork, WriteTx, now_ms

log = logging.getLogger(__name__)

MACHINE_SILENT_MS = 86_400_000


async def note_machine(store: Store, machine: str, incarnations: Collection[str]) -> None:
    """Keep which incarnations of a machine's workers may still give events. Replaces what it told before."""

    async def work(tx: WriteTx) -> None:
        await put_machine(tx, machine, incarnations)

    await store.transact(work)


async def forget_silent_machines(store: Store, transactions: UncancelledWork) -> None:
    """Forget machines that have told nothing for a day."""
    before_ms = now_ms() - MACHINE_SILENT_MS
    async with store.read() as conn:
        silent = await silent_machines(conn, before_ms)
    if not silent:
        return

    async def work(tx: WriteTx) -> None:
        await delete_machines(tx, silent, before_ms)

    await transactions.run(store.transact(work))
    log.warning(
        "Forgot machines of the proxy that told nothing for a day: %s. What their calls reserved of spend limits is"
        " released. If one comes back, its events are counted as ever.",
        ", ".join(silent),
    )
