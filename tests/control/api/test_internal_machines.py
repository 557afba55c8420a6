"""`POST /internal/v1/machines`: what supervisors tell of the incarnations that may still give events."""

from typing import Any

import pytest
from sqlalchemy import select

from control.edges.sql.spend.machines import named_incarnations
from control.edges.sql.spend.tables import spend_machines
from tests.control.plane import TOKEN, Answer, ControlPlane

PATH = "/internal/v1/machines"


async def tell(plane: ControlPlane, body: Any) -> Answer:
    return await plane.post(PATH, body, key=TOKEN)


async def test_a_machine_replaces_what_it_told_before(plane: ControlPlane) -> None:
    assert (await tell(plane, {"machine": "host:/one", "incarnations": ["a", "b"]})).ok() == {}
    assert (await tell(plane, {"machine": "host:/two", "incarnations": []})).ok() == {}
    assert (await tell(plane, {"machine": "host:/one", "incarnations": ["b", "c"]})).ok() == {}
    async with plane.store.read() as conn:
        assert await named_incarnations(conn) == {"b", "c"}
        assert set((await conn.execute(select(spend_machines.c.machine))).scalars()) == {"host:/one", "host:/two"}


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
    ],
)
async def test_what_is_malformed_is_named_and_not_taken(sqlite_plane: ControlPlane, body: Any, field: str) -> None:
    answer = (await tell(sqlite_plane, body)).refused(400)
    assert f"{field} must be" in answer["error"]
    async with sqlite_plane.store.read() as conn:
        assert await named_incarnations(conn) == set()


async def test_only_the_internal_token_may_tell(sqlite_plane: ControlPlane) -> None:
    (await sqlite_plane.post(PATH, {"machine": "host", "incarnations": []})).refused(401)
