"""Places with a share per workspace: who gets one, who waits in which order, and who is refused."""

import asyncio
import logging
import threading

import pytest

from runtime.shares.places import MAX_WAITING, NoPlaceError, Places

HOSTILE = "hostile"
OTHER = "other"


async def served(places: Places, workspace: str, name: str, order: list[str]) -> None:
    await places.wait(workspace)
    order.append(name)
    await asyncio.sleep(0)
    places.leave(workspace)


async def started(*tasks: "asyncio.Task[None]") -> None:
    """Return when these have asked for their places, in this order."""
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


async def test_call_waits_for_one_place_of_another_workspace_however_many_wait() -> None:
    places = Places(1, "places")
    order = list[str]()
    await places.wait(HOSTILE)
    many = [asyncio.create_task(served(places, HOSTILE, f"hostile {n}", order)) for n in range(50)]
    await started(*many)
    others = [asyncio.create_task(served(places, OTHER, f"other {n}", order)) for n in range(2)]
    await started(*many, *others)
    places.leave(HOSTILE)
    await asyncio.gather(*many, *others)
    assert order[:4] == ["other 0", "hostile 0", "other 1", "hostile 1"]
    assert order[4:] == [f"hostile {n}" for n in range(2, 50)]


async def test_workspaces_take_turns_in_rotation() -> None:
    places = Places(1, "places")
    order = list[str]()
    await places.wait("a")
    tasks = [asyncio.create_task(served(places, name, name, order)) for name in "aaabbbccc"]
    await started(*tasks)
    places.leave("a")
    await asyncio.gather(*tasks)
    assert "".join(order) == "bacbacbac"


async def test_workspace_with_too_many_waiting_calls_is_refused_and_others_are_not() -> None:
    places = Places(1, "places")
    await places.wait(HOSTILE)
    many = [asyncio.create_task(places.wait(HOSTILE)) for _ in range(MAX_WAITING)]
    await started(*many)
    with pytest.raises(NoPlaceError):
        await places.wait(HOSTILE)
    paid_call = asyncio.create_task(places.wait(HOSTILE, is_bounded=False))
    other = asyncio.create_task(places.wait(OTHER))
    await started(paid_call, other)
    places.leave(HOSTILE)
    await other
    for task in (*many, paid_call):
        task.cancel()


async def test_cancelled_caller_frees_its_place_in_the_queue() -> None:
    places = Places(1, "places")
    await places.wait(HOSTILE)
    many = [asyncio.create_task(places.wait(HOSTILE)) for _ in range(MAX_WAITING)]
    await started(*many)
    for task in many:
        task.cancel()
    await asyncio.wait(many)
    again = asyncio.create_task(places.wait(HOSTILE))
    await started(again)
    places.leave(HOSTILE)
    await again


async def test_caller_cancelled_as_its_turn_comes_passes_it_on() -> None:
    places = Places(1, "places")
    await places.wait(HOSTILE)
    leaving, staying = (asyncio.create_task(places.wait(HOSTILE)) for _ in range(2))
    await started(leaving, staying)
    places.leave(HOSTILE)
    leaving.cancel()
    await staying


@pytest.mark.parametrize(("most", "share"), [(2, 1), (4, 3), (64, 48), (96, 72), (512, 384)])
def test_one_workspace_alone_gets_three_quarters_and_the_next_one_still_gets_a_place(most: int, share: int) -> None:
    places = Places(most, "places")
    assert taken_by(places, HOSTILE) == share
    assert taken_by(places, OTHER) >= 1


def test_single_place_goes_to_any_workspace() -> None:
    places = Places(1, "places")
    assert taken_by(places, HOSTILE) == 1
    assert taken_by(places, OTHER) == 0
    places.leave(HOSTILE)
    assert taken_by(places, OTHER) == 1


def test_workspaces_that_come_one_after_the_other_all_get_places() -> None:
    places = Places(512, "places")
    assert [taken_by(places, f"workspace {n}") for n in range(6)] == [384, 96, 24, 6, 1, 1]


def test_place_is_left_when_its_block_fails() -> None:
    places = Places(1, "places")
    with pytest.raises(ValueError, match="amiss"), places.taken(HOSTILE):
        raise ValueError("amiss")
    places.acquire(OTHER)


async def test_workspace_at_its_share_waits_while_places_are_free_for_others() -> None:
    places = Places(4, "places")
    for _ in range(3):
        await places.wait(HOSTILE)
    fourth = asyncio.create_task(places.wait(HOSTILE))
    await started(fourth)
    await places.wait(OTHER)
    places.leave(OTHER)
    await started(fourth)
    places.leave(HOSTILE)
    await fourth


async def test_free_place_goes_past_a_workspace_that_has_its_share() -> None:
    places = Places(4, "places")
    for workspace in (HOSTILE, HOSTILE, HOSTILE, OTHER):
        await places.wait(workspace)
    hostile = asyncio.create_task(places.wait(HOSTILE))
    third = asyncio.create_task(places.wait("third"))
    await started(hostile, third)
    places.leave(OTHER)
    await third
    assert not hostile.done()
    hostile.cancel()


async def test_work_of_others_runs_while_one_workspace_keeps_its_share_of_the_threads() -> None:
    places = Places(4, "places")
    may_end = threading.Event()
    many = [asyncio.create_task(places.run(HOSTILE, lambda: may_end.wait(timeout=60))) for _ in range(20)]
    assert await places.run(OTHER, lambda: "done") == "done"
    may_end.set()
    assert await asyncio.gather(*many) == [True] * 20


def test_refusals_are_logged_once_with_the_workspace_and_its_places(caplog: pytest.LogCaptureFixture) -> None:
    places = Places(4, "shells")
    taken_by(places, HOSTILE)
    for _ in range(50):
        taken_by(places, HOSTILE)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "Workspace hostile got no further place: it holds 3 of 4 shells, and 1 are free" in caplog.text


def taken_by(places: Places, workspace: str) -> int:
    """Take places for the workspace until one is refused; return their number."""
    count = 0
    while True:
        try:
            places.acquire(workspace)
        except NoPlaceError:
            return count
        count += 1
