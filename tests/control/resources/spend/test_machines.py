"""Machines of the proxy for the operator: which there are, which are silent, and the release of one.

See docs/reference/money.md#how-spend-is-counted.
"""

import pytest
from sqlalchemy import update

from control.edges.sql.spend.machines import named_incarnations
from control.edges.sql.spend.rebuilds import put_states
from control.edges.sql.spend.tables import spend_machines
from control.edges.sql.store import Store, now_ms
from control.errors import NotFoundError
from control.resources.spend import machines
from control.resources.spend.machines import (
    MachineIsLiveError,
    SilentMachines,
    list_machines,
    note_machine,
    release_machine,
)
from policy.spend.spend_hash import spend_key
from tests.control.plane import ControlPlane


async def age(store: Store, name: str, by_ms: int) -> None:
    async with store.write() as tx:
        at = {"reported_at_ms": now_ms() - by_ms}
        await tx.conn.execute(update(spend_machines).where(spend_machines.c.machine == name).values(at))


async def test_machines_are_listed_with_the_trees_that_wait_for_them(plane: ControlPlane) -> None:
    store = plane.store
    async with store.write() as tx:
        await put_states(tx, {"one": "e 1", "two": "e 2"})
    await note_machine(store, "a", ["x", "y"], {})
    await note_machine(store, "b", ["z"], {spend_key("two"): "e 2"})
    first, second = await list_machines(store)
    assert (first["machine"], first["incarnations"], first["waiting_trees"]) == ("a", 2, ["one", "two"])
    assert (second["machine"], second["incarnations"], second["waiting_trees"]) == ("b", 1, ["one"])


async def test_machine_that_lives_is_released_by_force_only(plane: ControlPlane) -> None:
    store = plane.store
    with pytest.raises(NotFoundError, match="tollgate spend machines"):
        await release_machine(store, "a")
    await note_machine(store, "a", ["x"], {})
    with pytest.raises(MachineIsLiveError, match="--force"):
        await release_machine(store, "a")
    await age(store, "a", machines.LIVE_MS + 1)
    assert (await release_machine(store, "a"))["machine"] == "a"
    await note_machine(store, "a", ["x"], {})
    await release_machine(store, "a", is_forced=True)
    async with store.read() as conn:
        assert await named_incarnations(conn) == set()


async def test_silent_machines_are_named_in_the_log_and_kept(
    sqlite_plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    store = sqlite_plane.store
    await note_machine(store, "gone", ["x"], {})
    await note_machine(store, "here", ["y"], {})
    silent = SilentMachines()
    await silent.warn(store)
    assert not caplog.text
    await age(store, "gone", machines.MACHINE_SILENT_MS + 1)
    await silent.warn(store)
    await silent.warn(store)
    assert caplog.text.count("told nothing for 10 minutes: gone.") == 1
    assert "tollgate spend release --machine NAME" in caplog.text
    assert len(await list_machines(store)) == 2
