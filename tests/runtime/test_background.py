"""Background tasks end when their process does, even if a task swallows a cancellation."""

import asyncio
import errno
import threading

import pytest

from runtime import background
from runtime.background import cancelled, repeat_in_thread, running


class Stubborn:
    """Runs for ever and swallows this many cancellations."""

    def __init__(self, swallows: int) -> None:
        self.swallows = swallows
        self.began = asyncio.Event()

    async def run(self) -> None:
        self.began.set()
        while self.swallows:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.swallows -= 1
        await asyncio.Event().wait()


async def test_task_that_swallows_a_cancellation_still_ends() -> None:
    stubborn = Stubborn(2)
    task = asyncio.create_task(stubborn.run())
    await stubborn.began.wait()
    async with asyncio.timeout(30):
        await cancelled(task)
    assert task.cancelled()
    assert stubborn.swallows == 0


async def test_background_part_that_swallows_a_cancellation_ends_with_the_block() -> None:
    stubborn = Stubborn(1)
    async with asyncio.timeout(30), running(stubborn.run):
        await stubborn.began.wait()
    assert stubborn.swallows == 0


async def test_part_that_found_no_thread_starts_again_and_its_log_line_names_the_remedy(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "PAUSE_S", 0.01)
    failures = iter([RuntimeError("can't start new thread"), OSError(errno.EMFILE, "x")])
    served = asyncio.Event()

    async def part() -> None:
        for failure in failures:
            raise failure
        served.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(30), running(part):
        await served.wait()
    assert "`ulimit -u`" in caplog.text
    assert "`ulimit -n`" in caplog.text
    assert "report this bug" not in caplog.text


async def test_work_is_repeated_in_one_thread_until_it_is_cancelled() -> None:
    threads: list[int] = []
    loop = asyncio.get_running_loop()
    third = asyncio.Event()

    def work() -> None:
        threads.append(threading.get_ident())
        if len(threads) == 3:
            loop.call_soon_threadsafe(third.set)

    async with asyncio.timeout(30):
        async with running(lambda: repeat_in_thread(work, 0.001)):
            await third.wait()
    times = len(threads)
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()
    await asyncio.sleep(0.02)
    assert len(threads) == times


async def test_cancelled_repetition_waits_for_the_work_under_way() -> None:
    loop = asyncio.get_running_loop()
    began = asyncio.Event()
    may_end = threading.Event()
    ends: list[bool] = []

    def work() -> None:
        loop.call_soon_threadsafe(began.set)
        ends.append(may_end.wait(30))

    task = asyncio.create_task(repeat_in_thread(work, 60))
    await began.wait()
    task.cancel()
    await asyncio.sleep(0.02)
    assert not task.done()
    may_end.set()
    async with asyncio.timeout(30):
        await asyncio.wait([task])
    assert task.cancelled()
    assert ends == [True]


async def test_error_of_repeated_work_is_raised() -> None:
    def work() -> None:
        raise OSError(errno.EMFILE, "no descriptor")

    async with asyncio.timeout(30):
        with pytest.raises(OSError, match="no descriptor"):
            await repeat_in_thread(work, 60)
