"""Lines that say what is being done, and how long the program has run."""

import time
from collections.abc import Callable

Say = Callable[[str], None]


def clock() -> Say:
    """Prints a line behind the seconds since this call."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    return say
