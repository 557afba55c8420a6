"""Background tasks end when their process does, even if a task swallows a cancellation."""

import asyncio
import errno

import pytest

from runtime import background
from runtime.background import cancelled, running


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
