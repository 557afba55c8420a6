"""Long work: who gets the next turn, what is refused, and what becomes of work whose caller has gone."""

import asyncio
import sys
import threading
from collections.abc import Callable

import pytest

from runtime.long_work import MAX_WAITING, LongWork, TooMuchWorkError, Turns

HOSTILE, OTHER = "hostile", "other"


async def served(turns: Turns, workspace: str, name: str, order: list[str]) -> None:
    await turns.begin(workspace)
    order.append(name)
    await asyncio.sleep(0)
    turns.end()


async def started(*waiting: "asyncio.Task[None]") -> None:
    """Return when these have asked for their turns, in this order."""
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)


async def test_call_waits_for_one_turn_of_another_workspace_however_many_wait() -> None:
    turns, order = Turns(), list[str]()
    await turns.begin(HOSTILE)
    many = [asyncio.create_task(served(turns, HOSTILE, f"hostile {n}", order)) for n in range(50)]
    await started(*many)
    others = [asyncio.create_task(served(turns, OTHER, f"other {n}", order)) for n in range(2)]
    await started(*many, *others)
    turns.end()
    await asyncio.gather(*many, *others)
    assert order[:4] == ["other 0", "hostile 0", "other 1", "hostile 1"]
    assert order[4:] == [f"hostile {n}" for n in range(2, 50)]


async def test_workspaces_take_turns_in_rotation() -> None:
    turns, order = Turns(), list[str]()
    await turns.begin("a")
    tasks = [asyncio.create_task(served(turns, name, name, order)) for name in "aaabbbccc"]
    await started(*tasks)
    turns.end()
    await asyncio.gather(*tasks)
    assert "".join(order) == "bacbacbac"


async def test_workspace_with_too_many_waiting_calls_is_refused_and_others_are_not() -> None:
    turns = Turns()
    await turns.begin(HOSTILE)
    many = [asyncio.create_task(turns.begin(HOSTILE)) for _ in range(MAX_WAITING)]
    await started(*many)
    with pytest.raises(TooMuchWorkError):
        await turns.begin(HOSTILE)
    paid = asyncio.create_task(turns.begin(HOSTILE, is_bounded=False))
    other = asyncio.create_task(turns.begin(OTHER))
    await started(paid, other)
    turns.end()
    await other
    for task in (*many, paid):
        task.cancel()


async def test_cancelled_caller_frees_its_place_in_the_queue() -> None:
    turns = Turns()
    await turns.begin(HOSTILE)
    many = [asyncio.create_task(turns.begin(HOSTILE)) for _ in range(MAX_WAITING)]
    await started(*many)
    for task in many:
        task.cancel()
    await asyncio.wait(many)
    again = asyncio.create_task(turns.begin(HOSTILE))
    await started(again)
    turns.end()
    await again


async def test_caller_cancelled_as_its_turn_comes_passes_it_on() -> None:
    turns = Turns()
    await turns.begin(HOSTILE)
    leaving, staying = (asyncio.create_task(turns.begin(HOSTILE)) for _ in range(2))
    await started(leaving, staying)
    turns.end()
    leaving.cancel()
    await staying


async def test_work_runs_in_a_thread_while_the_loop_goes_on() -> None:
    going_on = threading.Event()
    asyncio.get_running_loop().call_soon(going_on.set)
    assert await LongWork().run(OTHER, lambda: going_on.wait(timeout=60))


async def test_error_of_the_work_is_raised() -> None:
    work = LongWork()
    with pytest.raises(ValueError, match="amiss"):
        await work.run(OTHER, failing)
    assert await work.run(OTHER, lambda: 1) == 1


async def test_one_piece_of_work_runs_at_a_time() -> None:
    work, running, most = LongWork(), list[int](), list[int]()

    def one() -> None:
        running.append(1)
        most.append(len(running))
        running.pop()

    await asyncio.gather(*(work.run(f"workspace {n % 3}", one) for n in range(30)))
    assert max(most) == 1


async def test_work_whose_caller_has_gone_keeps_its_turn_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    work, begun, may_end = LongWork(), threading.Event(), threading.Event()

    def fail_later() -> None:
        begun.set()
        may_end.wait(timeout=60)
        failing()

    gone = asyncio.create_task(work.run(HOSTILE, fail_later))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    gone.cancel()
    await asyncio.wait([gone])
    following = asyncio.create_task(work.run(OTHER, lambda: "done"))
    await started(following)  # type: ignore[arg-type]  # its result is not looked at
    may_end.set()
    assert await following == "done"
    assert not caplog.records


async def test_process_ends_while_work_is_running() -> None:
    program = (
        "import asyncio, threading\n"
        "from runtime.long_work import LongWork\n"
        "async def main():\n"
        "    begun = threading.Event()\n"
        "    work = lambda: (begun.set(), threading.Event().wait())\n"
        "    task = asyncio.create_task(LongWork().run('w', work))\n"
        "    while not begun.is_set():\n"
        "        await asyncio.sleep(0.001)\n"
        "    task.cancel()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await process.wait() == 0


async def test_tracing_of_the_caller_is_left_alone() -> None:
    traced: list[Callable[..., object] | None] = []
    before = sys.gettrace()
    await LongWork().run(OTHER, lambda: traced.append(sys.gettrace()))
    assert sys.gettrace() is before
    assert traced[0] is not before


def failing() -> None:
    raise ValueError("amiss")
