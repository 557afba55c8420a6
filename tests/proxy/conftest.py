"""Modules here that set `SKIPS_IDLE_TIME = True` run each test on the loop of `tests/skipping_loop.py`."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.skipping_loop import SkippingLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    module = item.getparent(pytest.Module)
    skips = module is not None and getattr(module.obj, "SKIPS_IDLE_TIME", False)
    return {"asyncio": SkippingLoop if skips else asyncio.new_event_loop}
