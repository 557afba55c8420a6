"""Hostile content costs a worker little more than plain text of the same size."""

import io
from pathlib import Path

import pytest

from tests.journeys.conftest import Stage
from tests.upstream import Usage, answer_json, chat_body

SIZE_BYTES = 20_000_000
TIMES = 5
HOSTILE = {
    "an escaped key, then line feeds": (rb'"\u006dodel_":"x",', rb"\n"),
    "an escaped key, then quotes": (rb'"\u006dodel_":"x",', rb"\""),
    "letters spelled out": (b"", rb"\u0061"),
    "backslashes": (b"", rb"\\"),
}


ANSWER = answer_json(200, chat_body("m", ["Read."], Usage(20, 10, 5)))


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_body_costs_little_more_cpu_than_plain_text(stage: Stage, name: str) -> None:
    stage.upstream.default = ANSWER
    key = await stage.key_without_limits()
    members, unit = HOSTILE[name]
    plain = await _cpu_s_of(stage, key, b"", b"All is well. ")
    hostile = await _cpu_s_of(stage, key, members, unit)
    assert hostile < TIMES * plain


async def _cpu_s_of(stage: Stage, key: str, members: bytes, unit: bytes) -> float:
    """The CPU seconds that the workers spend on one call whose body repeats `unit`."""
    text = unit * (SIZE_BYTES // len(unit))
    model = stage.slug.encode()
    body = b'{%b"model":"%b","messages":[{"role":"user","content":"%b"}]}' % (members, model, text)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    before_s = _workers_cpu_s(stage)
    url = stage.product.proxy + "/v1/chat/completions"
    async with stage.session.post(url, data=io.BytesIO(body), headers=headers) as answer:
        assert answer.status == 200, await answer.text()
    return _workers_cpu_s(stage) - before_s


def _workers_cpu_s(stage: Stage) -> float:
    """CPU time of all threads of the workers. In nanoseconds there (`schedstat`), as a plain body takes one tick."""
    workers = stage.product.processes("proxy.worker")
    threads = (thread for pid in workers for thread in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
