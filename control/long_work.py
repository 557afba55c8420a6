"""Runs long computations beside the event loop, so that one tenant's large request does not delay the others' calls.

A computation is a plain synchronous function: values in, values out, nothing shared with the loop. Bound its input
before it starts, because a thread cannot be stopped. Workspaces that wait take turns (decision 0064).
"""

import asyncio
import sys
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from runtime.shares.places import Places

R = TypeVar("R")
FEW = 50
"""The most items that run at once on the loop, in a millisecond or two. Work on more waits its turn in a thread."""
CHARS_PER_ITEM = 200
"""The number of characters of JSON that take as long as an item."""
OPERATOR = ""
"""The workspace whose share the requests of proxies and trainers use."""

SWITCH_INTERVAL_S = 0.00005
"""The longest time that a computation keeps the interpreter's lock while the loop waits for it."""

_PLACES: WeakKeyDictionary[asyncio.AbstractEventLoop, Places] = WeakKeyDictionary()


def let_the_loop_go_first() -> None:
    """Shorten the interpreter's switch interval, which is 5 ms: each turn of the loop may wait for one."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


async def beside(workspace_id: str, items: int, work: Callable[[], R]) -> R:
    """Return what `work` returns, or raise what it raises. Work on more than `FEW` items runs in a thread.

    One piece of work runs at a time. It takes some 20 to 50 µs for each of `items`, which is bounded.
    """
    if items <= FEW:
        return work()
    loop = asyncio.get_running_loop()
    places = _PLACES.get(loop)
    if places is None:
        places = _PLACES[loop] = Places(1, "long computations")
    return await places.run(workspace_id, work, is_bounded=False)
