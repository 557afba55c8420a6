"""A trainer in memory for each test."""

from collections.abc import AsyncIterator

import pytest

from tests.trainer.world import World, without_pauses


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    without_pauses(monkeypatch.setattr)
    world = World()
    yield world
    await world.kill()
