"""Work that cannot be cut runs beside a worker's loop, one piece at a time, also when its caller has gone."""

import asyncio
import sys
import threading
from collections.abc import Callable

import pytest

from proxy.time_slices import Slices

HOSTILE = "hostile"
OTHER = "other"


async def started(*tasks: "asyncio.Task[None]") -> None:
    """Return when these have asked for their turns, in this order."""
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


async def test_work_runs_in_a_thread_while_the_loop_goes_on() -> None:
    going_on = threading.Event()
    asyncio.get_running_loop().call_soon(going_on.set)
    assert await Slices().beside(OTHER, lambda: going_on.wait(timeout=60))


async def test_error_of_the_work_is_raised() -> None:
    work = Slices()
    with pytest.raises(ValueError, match="amiss"):
        await work.beside(OTHER, failing)
    assert await work.beside(OTHER, lambda: 1) == 1


async def test_one_piece_of_work_runs_at_a_time() -> None:
    work = Slices()
    running = list[int]()
    most = list[int]()

    def one() -> None:
        running.append(1)
        most.append(len(running))
        running.pop()

    await asyncio.gather(*(work.beside(f"workspace {n % 3}", one) for n in range(30)))
    assert max(most) == 1


async def test_work_whose_caller_has_gone_keeps_its_turn_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    work = Slices()
    at_work = threading.Event()
    may_end = threading.Event()

    def fail_later() -> None:
        at_work.set()
        may_end.wait(timeout=60)
        failing()

    leaver = asyncio.create_task(work.beside(HOSTILE, fail_later))
    while not at_work.is_set():
        await asyncio.sleep(0.001)
    leaver.cancel()
    await asyncio.wait([leaver])
    following = asyncio.create_task(work.beside(OTHER, lambda: "done"))
    await started(following)  # type: ignore[arg-type]  # its result is not looked at
    may_end.set()
    assert await following == "done"
    assert not caplog.records


async def test_process_ends_while_work_is_running() -> None:
    program = (
        "import asyncio, threading\n"
        "from proxy.time_slices import Slices\n"
        "async def main():\n"
        "    begun = threading.Event()\n"
        "    work = lambda: (begun.set(), threading.Event().wait())\n"
        "    task = asyncio.create_task(Slices().beside('w', work))\n"
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
    await Slices().beside(OTHER, lambda: traced.append(sys.gettrace()))
    assert sys.gettrace() is before
    assert traced[0] is not before


def failing() -> None:
    raise ValueError("amiss")
