"""Modules here that set `BOTH_LOOPS = True` run each test on uvloop's loop, which production uses.

The soak runs them on asyncio's loop too, which is more exact about what its documentation promises.
"""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if _takes_both_loops(item):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _takes_both_loops(item) and "asyncio" in item.name.partition("[")[2].rstrip("]").split("-"):
            item.add_marker(pytest.mark.soak)


def _takes_both_loops(item: pytest.Item) -> bool:
    module = item.getparent(pytest.Module)
    return module is not None and getattr(module.obj, "BOTH_LOOPS", False)
