"""The wait before the next try: exponential backoff with jitter, so that processes do not retry in step."""

import random

_MOST_DOUBLINGS = 30


def pause_s(failures: int, first_s: float, longest_s: float) -> float:
    """The pause after `failures` in a row, at least 1: `first_s`, doubled with each one up to `longest_s`, jittered."""
    return jittered_s(min(longest_s, first_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS)))


def jittered_s(pause_s: float) -> float:
    """Half to all of it. Not less: something that fails fast must not be repeated at once."""
    return pause_s * random.uniform(0.5, 1.0)  # noqa: S311 (spreads load, keeps no secret)
