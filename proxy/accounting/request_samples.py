"""The sample of calls that stands for all, where more have ended in a second than the list of requests has. Pure.

See docs/reference/management-api.md#requests.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

LEAST = 2
"""The least bound of a sample: one success, and one that is none."""
Pick = tuple[int, int]
"""The place of a call, and the weight that it gets."""


def picks(weights: Sequence[int], most: int, draw: Callable[[int, int], int]) -> list[Pick]:
    """Pick at most `most` of the calls with these weights, evenly over their order. The weights keep their sum.

    A call is picked as often as its weight asks for: whatever is summed over a sample is true on average. `draw`:
    returns a random number from the first one on, below the second.
    """
    if len(weights) <= most:
        return list(enumerate(weights))
    ends = list(accumulate(weights))
    total = ends[-1]
    picked: dict[int, int] = {}
    start = 0
    for number in range(1, most + 1):
        end = total * number // most
        place = bisect_right(ends, draw(start, end))
        picked[place] = picked.get(place, 0) + end - start
        start = end
    return list(picked.items())


def even_weights(calls: int, share: int) -> list[int]:
    """The weights of `share` calls that stand for this many."""
    weight, surplus = divmod(calls, share)
    return [weight + 1] * surplus + [weight] * (share - surplus)


def shares(successes: int, others: int, most: int) -> tuple[int, int]:
    """The places of successes and of other calls in a sample. Others go only where no success is left to go.

    Of each kind that came one remains, so that the weights sum up to all calls.
    """
    if successes + others <= most:
        return successes, others
    for_others = min(others, most - (successes > 0))
    return most - for_others, for_others
