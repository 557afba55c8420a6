"""The machines of the proxy: what each tells of its workers, and which have fallen silent.

A machine that is silent keeps what its calls reserved, until it tells again or is released by hand: its events may
still come.

See docs/reference/money.md#how-spend-is-counted.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from control.edges.sql.spend.machines import all_machines, delete_machine, machine_of, put_machine
from control.edges.sql.spend.rebuilds import hard_trees
from control.edges.sql.store import Store, WriteTx, now_ms
from control.errors import DomainError, NotFoundError
from control.records.spend import ProxyMachine, waiting_among
from control.records.times import time_text
from policy.spend.spend_hash import spend_key
from runtime.log_lines import PacedLog

log = logging.getLogger(__name__)

KEPT_MS = 15_000
"""The age from which what a machine told is written again although it tells the same."""
MACHINE_SILENT_MS = 600_000
"""The silence of a machine after which the operator is warned."""
WARNING_S = 3_600.0
LIVE_MS = 60_000
"""The time from its last report in which a machine is not released without force."""


async def note_machine(
    store: Store, name: str, incarnations: Collection[str], rebuilt: Mapping[str, str]
) -> Mapping[str, str]:
    """Keep which incarnations of a machine's workers may still give events; without one, forget the machine.

    `rebuilt`: by hash key, the state of a tree that waits, once all that this machine's calls reserved there is in
    Redis or committed. Returns the states that the machine has not confirmed yet, by hash key.
    """
    async with store.read() as conn:
        before = await machine_of(conn, name)
        states = waiting_among(await hard_trees(conn))
    waits = {spend_key(root_id): state for root_id, state in states.items()}
    confirmed = {} if before is None else before.rebuilt
    # What was confirmed once stays so: since then all reservations of that tree were made in its hash.
    confirmed = {key: state for key, state in {**confirmed, **rebuilt}.items() if waits.get(key) == state}
    after = ProxyMachine(name, frozenset(incarnations), confirmed, now_ms())
    if _is_other(before, after):
        await store.transact(lambda tx: _write(tx, after))
    return {key: state for key, state in waits.items() if key not in confirmed}


def _is_other(before: ProxyMachine | None, after: ProxyMachine) -> bool:
    """Return whether what a machine tells is to be written."""
    if before is None:
        return bool(after.incarnations)
    is_old = not 0 <= after.reported_at_ms - before.reported_at_ms < KEPT_MS
    return is_old or before._replace(reported_at_ms=after.reported_at_ms) != after


async def _write(tx: WriteTx, machine: ProxyMachine) -> None:
    if machine.incarnations:
        await put_machine(tx, machine.name, machine.incarnations, machine.rebuilt)
    else:
        await delete_machine(tx, machine.name)


class SilentMachines:
    """Warns of machines that have told nothing for a while, at most once an hour."""

    def __init__(self) -> None:
        self._warnings = PacedLog(log, WARNING_S)

    async def warn(self, store: Store) -> None:
        """Warn if there is one now."""
        async with store.read() as conn:
            machines = await all_machines(conn)
        silent = [one.name for one in machines if one.reported_at_ms < now_ms() - MACHINE_SILENT_MS]
        if silent:
            self._warnings.warning(
                f"Machines of the proxy have told nothing for {MACHINE_SILENT_MS // 60_000} minutes:"
                f" {', '.join(silent)}. What their calls reserved of spend limits stays reserved, and after a loss of"
                " Redis calls that HARD spend limits bind are answered 503. Start a machine again, so that it ships its"
                " journal; if it never comes back: `tollgate spend release --machine NAME`."
            )


# --- for the operator -----------------------------------------------------------------------------------------------


class MachineIsLiveError(DomainError):
    """A machine that is to be released has just told that it lives."""


async def list_machines(store: Store) -> list[Mapping[str, Any]]:
    """All machines that may still give events, by name: what `tollgate spend machines` prints."""
    async with store.read() as conn:
        machines = await all_machines(conn)
        states = waiting_among(await hard_trees(conn))
    return [_described(one, [id for id, state in states.items() if is_waiting_for(one, id, state)]) for one in machines]


def _described(machine: ProxyMachine, waiting_trees: Sequence[str]) -> Mapping[str, Any]:
    return {
        "machine": machine.name,
        "reported_at": time_text(machine.reported_at_ms),
        "incarnations": len(machine.incarnations),
        "waiting_trees": sorted(waiting_trees),
    }


def is_waiting_for(machine: ProxyMachine, root_id: str, state: str) -> bool:
    """Return whether a tree in this state waits for the machine."""
    return machine.rebuilt.get(spend_key(root_id)) != state


async def release_machine(store: Store, name: str, *, is_forced: bool = False) -> Mapping[str, Any]:
    """Forget a machine that never comes back: the next sweep ends what its calls reserved, and no tree waits for it.

    Returns what it was. Raises `NotFoundError`, and `MachineIsLiveError` if it told something within the last minute.
    """

    async def work(tx: WriteTx) -> Mapping[str, Any]:
        machine = await machine_of(tx.conn, name)
        if machine is None:
            raise NotFoundError(f"No machine {name!r} is known; `tollgate spend machines` lists those that are.")
        silent_ms = tx.now_ms - machine.reported_at_ms
        if silent_ms < LIVE_MS and not is_forced:
            raise MachineIsLiveError(
                f"Machine {name!r} told {max(0, silent_ms) // 1000} s ago that it lives. Stop it first, so that it"
                " ships its journal, or release it with --force: calls that it still has may then cost more than"
                " HARD spend limits allow."
            )
        await delete_machine(tx, name)
        return _described(machine, ())

    return await store.transact(work)
