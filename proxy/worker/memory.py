"""A worker's memory: when garbage is collected, what is kept for reuse, what is returned after a burst.

Uses what Python and glibc document, and relies on no library's inside. Other allocators do not mind.

See docs/decisions/0052-what-holds-arenas.md.
"""

import ctypes
import gc

YOUNG_OBJECTS = 10_000
"""New containers before the garbage collector runs: a few MiB. Ten calls make Python's default of 700."""
MIDDLE_PASSES = 100
"""Young collections before one of the middle generation. It visits all that was cached since the last one: up to 80 ms
when most pairs of key and slug are new."""
ROOM_BYTES = 16 << 20
"""Memory kept for reuse: eight prompts of 400 kB at once fit without returning a page to the system."""


def collect_garbage_less_often() -> None:
    """Exempt all present objects from garbage collection, and collect less often: calls leave few cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, MIDDLE_PASSES, 20)


def keep_room() -> None:
    """Let glibc keep up to twice ROOM_BYTES of freed memory, as it does after freeing a block that large (mallopt(3)).

    Otherwise it gives a body's pages back with each call and faults them in again with the next: up to half of what a
    400 kB prompt costs. The block itself is never touched, so it takes no memory.
    """
    bytes(ROOM_BYTES)


def return_free_memory() -> None:
    """Have glibc return the free pages inside its heap. On its own it returns only those at the heap's end, and
    `keep_room` stops even that."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
