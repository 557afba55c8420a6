"""One run serves all who asked before it began, and nobody who asked later."""

import asyncio

import pytest

from control.shared_work import SharedWork


class Work:
    """Notes each run's key. A run ends when `gate` opens, with what was true when it began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.truth = 0
        self.gate = asyncio.Event()
        self.error: Exception | None = None
        self.shared = SharedWork(self._run)

    async def _run(self, key: str) -> int:
        self.began.append(key)
        value = self.truth
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return value

    def ask(self, key: str = "k") -> "asyncio.Task[int]":
        return asyncio.create_task(self.shared.of(key))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_who_ask_at_once_share_a_run() -> None:
    work = Work()
    tasks = [work.ask() for _ in range(200)]
    await turns()
    work.gate.set()
    assert await asyncio.gather(*tasks) == [0] * 200
    assert work.began == ["k"]


async def test_who_asks_during_a_run_gets_one_that_began_later() -> None:
    work = Work()
    first = work.ask()
    await turns()
    work.truth = 1  # committed while the first run reads
    late = [work.ask() for _ in range(50)]
    await turns()
    assert work.began == ["k"]
    work.gate.set()
    assert await first == 0
    assert await asyncio.gather(*late) == [1] * 50
    assert work.began == ["k", "k"]


async def test_another_key_is_another_run() -> None:
    work = Work()
    tasks = [work.ask("a"), work.ask("b")]
    await turns()
    assert work.began == ["a", "b"]
    work.gate.set()
    await asyncio.gather(*tasks)


async def test_error_reaches_all_who_asked_and_the_next_run_starts_afresh() -> None:
    work = Work()
    work.error = OSError("gone")
    tasks = [work.ask() for _ in range(3)]
    await turns()
    late = work.ask()
    work.gate.set()
    assert all(isinstance(result, OSError) for result in await asyncio.gather(*tasks, late, return_exceptions=True))
    work.error = None
    assert await work.shared.of("k") == 0
    assert work.began == ["k", "k", "k"]


async def test_a_cancelled_asker_takes_the_result_from_nobody() -> None:
    work = Work()
    task = work.ask()
    stays = work.ask()
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    work.gate.set()
    assert await stays == 0
    assert work.began == ["k"]
