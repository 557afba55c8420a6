"""A day of traffic before the scene's own calls, as a proxy reports it, so that charts have a shape."""

import math
import random
import time
from collections.abc import Iterator

from policy.traffic import BUCKETS, MINUTE_MS, TrafficRow
from tests.journeys.console.scene import SLUGS, Scene

MINUTES = 1440
_BATCH = 1000
_CALLS_A_MINUTE = {SLUGS[0]: 90, SLUGS[1]: 40, SLUGS[2]: 15}


async def add_history(scene: Scene) -> None:
    """Report a day of calls of the scene's slugs: a wave, some noise, few errors."""
    product = scene.stage.product
    token = (product.data / "internal.token").read_text().strip()
    workspace_id = (await scene.stage.operator.call("GET", "/v1/teams"))["teams"][0]["id"]
    rows = list(_rows(workspace_id))
    for number, start in enumerate(range(0, len(rows), _BATCH), 1):
        body = {"sender": "a" * 16, "number": number, "rows": rows[start : start + _BATCH]}
        headers = {"Authorization": f"Bearer {token}"}
        url = product.control + "/internal/v1/traffic"
        async with scene.stage.session.post(url, json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()


def _rows(workspace_id: str) -> Iterator[dict[str, object]]:
    chance = random.Random(7)
    now_minute = int(time.time() * 1000) // MINUTE_MS
    for minute in range(now_minute - MINUTES, now_minute):
        for slug, usual in _CALLS_A_MINUTE.items():
            wave = 1 + 0.4 * math.sin(minute / 55)
            calls = round(usual * wave * chance.uniform(0.8, 1.2))
            refusals = round(calls * (0.08 if minute % 23 < 4 else 0.004))
            errors = int(chance.random() < 0.2)
            tokens = (
                calls * chance.randint(600, 700),
                calls * chance.randint(380, 420),
                calls * chance.randint(230, 260),
            )
            buckets = [0] * BUCKETS
            buckets[5] = calls * 2 // 3
            buckets[6] = calls - buckets[5]
            sums = (calls, errors, refusals, *tokens)
            yield TrafficRow(workspace_id, slug, minute * MINUTE_MS, sums, tuple(buckets)).to_wire()
