"""`POST /internal/v1/machines`: what supervisors tell of the incarnations that may still give events."""

from typing import Any

import pytest
from sqlalchemy import select

from control.edges.sql.spend.machines import named_incarnations
from control.edges.sql.spend.rebuilds import put_states
from control.edges.sql.spend.tables import spend_machines
from control.records.spend import COMPLETE, DROPPED
from control.resources.spend import machines
from policy.spend.spend_hash import spend_key
from tests.control.plane import TOKEN, Answer, ControlPlane

PATH = "/internal/v1/machines"


async def tell(plane: ControlPlane, body: Any) -> Answer:
    return await plane.post(PATH, body, key=TOKEN)


async def report(plane: ControlPlane, machine: str, incarnations: list[str], **rebuilt: str) -> Any:
    """Report; returns what the machine is to put again."""
    body = {"machine": machine, "incarnations": incarnations, "rebuilt": rebuilt}
    return (await tell(plane, body)).ok()["waiting"]


async def wait_for(plane: ControlPlane, states: dict[str, str]) -> None:
    async with plane.store.write() as tx:
        await put_states(tx, states)


async def reported_at(plane: ControlPlane) -> int:
    async with plane.store.read() as conn:
        (at_ms,) = (await conn.execute(select(spend_machines.c.reported_at_ms))).scalars()
    return int(at_ms)


async def test_a_machine_replaces_what_it_told_before(plane: ControlPlane) -> None:
    assert (await tell(plane, {"machine": "host:/one", "incarnations": ["a", "b"]})).ok() == {"waiting": {}}
    assert (await tell(plane, {"machine": "host:/two", "incarnations": ["d"]})).ok() == {"waiting": {}}
    assert (await tell(plane, {"machine": "host:/one", "incarnations": ["b", "c"]})).ok() == {"waiting": {}}
    async with plane.store.read() as conn:
        assert await named_incarnations(conn) == {"b", "c", "d"}
        assert set((await conn.execute(select(spend_machines.c.machine))).scalars()) == {"host:/one", "host:/two"}


async def test_a_machine_without_incarnations_is_forgotten(plane: ControlPlane) -> None:
    for incarnations in ([], ["a"], []):
        await report(plane, "host", incarnations)
        async with plane.store.read() as conn:
            assert await named_incarnations(conn) == set(incarnations)


async def test_a_machine_is_told_which_trees_wait_until_it_has_confirmed_them(plane: ControlPlane) -> None:
    await wait_for(plane, {"one": "e 1", "two": "e 2", "whole": COMPLETE, "past": DROPPED})
    one, two = spend_key("one"), spend_key("two")
    assert await report(plane, "host", ["a"]) == {one: "e 1", two: "e 2"}
    assert await report(plane, "host", ["a"], **{one: "e 1", two: "e 0"}) == {two: "e 2"}
    assert await report(plane, "host", ["a"]) == {two: "e 2"}, "it stays confirmed"
    assert await report(plane, "other", ["b"]) == {one: "e 1", two: "e 2"}
    await wait_for(plane, {"one": "e 3", "two": COMPLETE})
    assert await report(plane, "host", ["a"], **{one: "e 1"}) == {one: "e 3"}, "the hash was lost again"


async def test_what_is_told_again_is_written_from_time_to_time(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    await report(plane, "host", ["a"])
    at_ms = await reported_at(plane)
    await report(plane, "host", ["a"])
    assert await reported_at(plane) == at_ms
    monkeypatch.setattr(machines, "KEPT_MS", 0)
    await report(plane, "host", ["a"])
    assert await reported_at(plane) > at_ms


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"incarnations": []}, "machine"),
        ({"machine": "", "incarnations": []}, "machine"),
        ({"machine": "x" * 256, "incarnations": []}, "machine"),
        ({"machine": "a\0", "incarnations": []}, "machine"),
        ({"machine": "host"}, "incarnations"),
        ({"machine": "host", "incarnations": "a"}, "incarnations"),
        ({"machine": "host", "incarnations": ["a"] * 10_001}, "incarnations"),
        ({"machine": "host", "incarnations": ["a", 1]}, "incarnations.1"),
        ({"machine": "host", "incarnations": ["x" * 65]}, "incarnations.0"),
        ({"machine": "host", "incarnations": ["a"], "rebuilt": ["x"]}, "rebuilt"),
        ({"machine": "host", "incarnations": ["a"], "rebuilt": {"x": 1}}, "rebuilt"),
        ({"machine": "host", "incarnations": ["a"], "rebuilt": {"x": "y" * 256}}, "rebuilt"),
    ],
)
async def test_what_is_malformed_is_named_and_not_taken(sqlite_plane: ControlPlane, body: Any, field: str) -> None:
    answer = (await tell(sqlite_plane, body)).refused(400)
    assert f"{field} must be" in answer["error"]
    async with sqlite_plane.store.read() as conn:
        assert await named_incarnations(conn) == set()


async def test_only_the_internal_token_may_tell(sqlite_plane: ControlPlane) -> None:
    (await sqlite_plane.post(PATH, {"machine": "host", "incarnations": []})).refused(401)
