"""The majority among sentinels: one may be cut off from the others, and name a primary that they have replaced."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

from runtime.redis.slots import Place

OTHER_ANSWERS_S = 0.3
"""The time that the others may take after the first one that names a primary, when they disagree or are silent."""


async def most_named(questions: Sequence[Coroutine[Any, Any, Place | None]], within_s: float) -> Place | None:
    """The primary that most of them name; at once when more than half of all do. None if nobody names one in time.

    Each of `questions` is one sentinel's answer, None if it gives none. `within_s`: how long all of them may be silent.
    """
    tasks = [asyncio.create_task(one) for one in questions]
    votes: Counter[Place] = Counter()
    try:
        async with asyncio.timeout(within_s) as limit:
            for answer in asyncio.as_completed(tasks):
                place = await answer
                if place is not None:
                    if not votes:
                        limit.reschedule(asyncio.get_running_loop().time() + OTHER_ANSWERS_S)
                    votes[place] += 1
                    if 2 * votes[place] > len(tasks):
                        return place
    except TimeoutError:
        pass  # those that answered decide
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return votes.most_common(1)[0][0] if votes else None
