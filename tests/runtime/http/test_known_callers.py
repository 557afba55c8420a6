"""Callers of a listener are known again by their credential; the first requests of one share its look-up."""

import asyncio

import pytest

from runtime.http import known_callers
from runtime.http.known_callers import KnownCallers

KEY = {"Authorization": "Bearer secret-key"}
OTHER = {"x-api-key": "other-key"}
COOKIE = {"Cookie": "session=abc"}


def test_accepted_credential_is_known_by_its_workspace() -> None:
    callers = KnownCallers()
    callers.note(KEY, "ws1")
    callers.note(COOKIE, None)
    assert callers.knows(KEY) == ("ws1",)
    assert callers.knows(COOKIE) == (None,)
    assert callers.knows(OTHER) is None
    assert callers.knows({}) is None
    assert "secret-key" not in repr(vars(callers))


def test_oldest_credential_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_callers, "MOST", 2)
    callers = KnownCallers()
    for headers in (KEY, OTHER, KEY, COOKIE):
        callers.note(headers, "ws1")
    assert callers.knows(OTHER) is None
    assert callers.knows(KEY) == ("ws1",)


async def looked_up(callers: KnownCallers, headers: dict[str, str], entered: list[str], name: str) -> None:
    async with callers.looking_up(headers):
        entered.append(name)


async def test_requests_with_one_credential_wait_for_the_look_up_of_the_first() -> None:
    callers = KnownCallers()
    entered = list[str]()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group, callers.looking_up(KEY):
        second = group.create_task(looked_up(callers, KEY, entered, "second"))
        await looked_up(callers, OTHER, entered, "another credential")
        await looked_up(callers, {}, entered, "no credential")
        assert entered == ["another credential", "no credential"]
        callers.note(KEY, "ws1")
        await second
    assert entered[-1] == "second"


async def test_refused_look_up_lets_all_others_go_on() -> None:
    callers = KnownCallers()
    entered = list[str]()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group, callers.looking_up(KEY):
        for name in ("second", "third"):
            group.create_task(looked_up(callers, KEY, entered, name))
        await asyncio.sleep(0)
        assert entered == []
    assert sorted(entered) == ["second", "third"]


async def test_request_that_looks_nothing_up_holds_others_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_callers, "LOOK_UP_S", 0.01)
    callers = KnownCallers()
    entered = list[str]()
    async with asyncio.timeout(30), callers.looking_up(KEY):
        await looked_up(callers, KEY, entered, "second")
        await looked_up(callers, KEY, entered, "third")
    assert entered == ["second", "third"]
