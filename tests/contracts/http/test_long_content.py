"""A long request or answer costs little more than plain text of its length, and other calls are served meanwhile.

Compares CPU and memory within one run, so that the speed of the machine does not matter.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import pytest

from proxy.time_slices import SLICE_S
from tests.contracts.http import long_content
from tests.contracts.http.long_content import (
    ANSWERS,
    MB,
    REQUESTS,
    STREAMS,
    TEXTS,
    BodyReadingUpstream,
    Discarding,
    call_of,
    joining_s,
    parser_s,
)
from tests.fakes.path import PathRig
from tests.fakes.upstream_client import answer
from tests.fakes.wire import asking

MAX_RATIO = 5
"""Largest ratio of any other content's CPU time and memory to plain text's."""
SIZES = ((1, 3), (10, 2))
"""Size in MB and number of measurements. The soak also measures the largest sizes allowed."""


ARENA_BYTES = 1 << 20
"""Python takes memory from the system in arenas of this size, so a peak may lie this far above what was in use."""


@dataclass
class Meter:
    """The process that measures long content."""

    requests: IO[str]
    results: IO[str]

    def __post_init__(self) -> None:
        self.plain: dict[tuple[str, float], dict[str, Any]] = {}

    def figures(self, kind: str, size: float, times: int) -> dict[str, Any]:
        print(kind, size, times, file=self.requests, flush=True)
        figures: dict[str, Any] = json.loads(self.results.readline())
        return figures

    def figures_of_plain(self, direction: str, size: float, times: int) -> dict[str, Any]:
        if (direction, size) not in self.plain:
            self.plain[direction, size] = self.figures(f"{direction}: plain", size, times)
        return self.plain[direction, size]


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    program = [sys.executable, "-m", "tests.contracts.http.long_content"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Meter(process.stdin, process.stdout)
        process.stdin.close()


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(
    ("direction", "key", "sizes"),
    [
        ("request", ", and a key", SIZES),
        pytest.param("request", ", and a key", ((90, 1),), marks=pytest.mark.soak),
        ("request", "", SIZES[1:]),
        ("request translated", "", SIZES[1:]),
        ("answer", ", and a key", SIZES),
        pytest.param("answer", ", and a key", ((31, 1),), marks=pytest.mark.soak),
        ("answer", "", SIZES[1:]),
    ],
)
def test_no_string_content_costs_much_more_than_plain_text(
    meter: Meter, direction: str, key: str, sizes: tuple[tuple[int, int], ...], name: str
) -> None:
    for size, times in sizes:
        plain = meter.figures_of_plain(direction, size, times)
        other = meter.figures(f"{direction}: {name}{key}", size, times)
        assert other["status"] == plain["status"] == 200
        assert other["cpu_s"] < MAX_RATIO * plain["cpu_s"], size
        assert other["memory_bytes"] < MAX_RATIO * max(plain["memory_bytes"], size * MB), size


@pytest.mark.parametrize("name", sorted(REQUESTS.keys() - {f"{n}{k}" for n in TEXTS for k in ("", ", and a key")}))
def test_no_request_costs_much_more_than_its_parsing(meter: Meter, name: str) -> None:
    kind = f"request: {name}"
    figures = meter.figures(kind, 10, 2)
    assert figures["status"] in (200, 400)
    assert figures["cpu_s"] < MAX_RATIO * (meter.figures_of_plain("request", 10, 2)["cpu_s"] + parser_s(kind, 10 * MB))
    assert figures["memory_bytes"] < MAX_RATIO * 10 * MB


@pytest.mark.parametrize("name", sorted(ANSWERS.keys() - {f"{n}{k}" for n in TEXTS for k in ("", ", and a key")}))
def test_answer_memory_is_bounded_for_every_content(meter: Meter, name: str) -> None:
    assert meter.figures(f"answer: {name}", 10, 1)["memory_bytes"] < MAX_RATIO * 10 * MB


@pytest.mark.parametrize(
    ("kind", "size"),
    [("request: strings of 1 kB in tools", 90), ("answer: plain", 31), ("answer: strings of 1 kB", 31)],
)
def test_long_call_is_split_over_many_turns_of_the_loop(meter: Meter, kind: str, size: int) -> None:
    figures = meter.figures(kind, size, 3)
    assert figures["status"] == 200
    longest_slice_s = max(figures["cpu_s"] / 8, 2 * SLICE_S)  # a fast processor needs few slices
    assert figures["held_s"] < longest_slice_s + joining_s(kind, size * MB, 3)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("direction", ["stream", "stream in drops"])
def test_stream_cost_is_linear_in_its_length(meter: Meter, direction: str, name: str) -> None:
    size = 0.05 if name.startswith("tiny") else 0.25
    shorter = meter.figures(f"{direction}: {name}", size, 3)
    longer = meter.figures(f"{direction}: {name}", 4 * size, 3)
    assert longer["cpu_s"] < 2 * 4 * shorter["cpu_s"]
    assert longer["memory_bytes"] < 16 * MB + ARENA_BYTES


@pytest.mark.parametrize(
    "name", ["letters as escapes, and a key", "quotes", "line feeds", "strings of 1 kB", "short strings"]
)
async def test_other_calls_are_served_while_a_long_request_is_read(name: str) -> None:
    rig = PathRig(upstream=BodyReadingUpstream(), max_body_bytes=100 * MB)
    incoming, small = call_of(f"request: {name}", 80 * MB)
    rig.upstream.will(small)
    outgoing = Discarding()
    served = 0
    long = asyncio.ensure_future(rig.pipeline.handle(incoming, outgoing))
    while incoming.parts:  # count only calls served after its last byte arrived
        await asyncio.sleep(0)
    while not outgoing.status and not any(len(call.body) > MB for call in rig.upstream.calls):
        rig.upstream.will(answer(long_content.SMALL_ANSWER))
        assert (await rig.serve(asking())).status == 200
        served += 1
    await long
    assert served > 3


async def test_other_calls_are_served_while_a_long_answer_is_read() -> None:
    rig = PathRig(upstream=BodyReadingUpstream())
    incoming, long_answer = call_of("answer: letters as escapes, and a key", 30 * MB)
    rig.upstream.will(long_answer)
    outgoing = Discarding()
    served = 0
    long = asyncio.ensure_future(rig.pipeline.handle(incoming, outgoing))
    while not long_answer.ended:
        await asyncio.sleep(0)
    while not long.done():
        rig.upstream.will(answer(long_content.SMALL_ANSWER))
        assert (await rig.serve(asking())).status == 200
        served += 1
    assert outgoing.status == 200
    assert served > 1
