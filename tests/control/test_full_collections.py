"""Full garbage collections wait until no request is processed."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from control import full_collections
from control.full_collections import collect_when_idle
from control.workspace_turns import WorkspaceTurns
from tests.waiting import PATIENCE_S, eventually


@pytest.fixture
def collections_seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Records full garbage collections, of which one is always due."""
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            generations.append(info["generation"])

    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, 100))
    monkeypatch.setattr(full_collections, "_CHECK_EVERY_S", 0.001)
    gc.freeze()  # what pytest holds takes seconds to collect on a busy machine
    gc.callbacks.append(note)
    yield generations
    gc.callbacks.remove(note)
    gc.unfreeze()


async def test_full_collections_wait_until_no_request_is_processed(collections_seen: list[int]) -> None:
    turns = WorkspaceTurns()
    task = asyncio.create_task(collect_when_idle(turns))
    async with turns.of("ws"):
        await asyncio.sleep(0.05)
        assert collections_seen == []
    await eventually(lambda: collections_seen)
    task.cancel()


async def test_a_full_collection_runs_late_if_requests_never_pause(
    collections_seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_collections, "_COLLECT_AFTER_S", 0.01)
    turns = WorkspaceTurns()
    async with turns.of("ws"), asyncio.timeout(PATIENCE_S):
        task = asyncio.create_task(collect_when_idle(turns))
        while not collections_seen:
            await asyncio.sleep(0.001)
    task.cancel()
