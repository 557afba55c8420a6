"""Whatever a long request or answer holds, it costs little more than plain text, and other calls are served meanwhile.

Ratios within one run, of CPU and of memory: what a machine makes of a second is not the point.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import pytest

from tests.contracts.http import long_content
from tests.contracts.http.long_content import (
    ANSWERS,
    MB,
    REQUESTS,
    STREAMS,
    TEXTS,
    Discarding,
    Taking,
    call_of,
    parser_s,
)
from tests.fakes.path import House
from tests.fakes.upstream_client import answer
from tests.fakes.wire import asking

TIMES = 5
"""As many as plain text's CPU and memory anything else may take."""
SIZES = ((1, 3), (10, 2))
"""In MB, and how often each is measured. The soak measures the largest that are allowed, too."""


@dataclass
class Meter:
    """A process in which long content is measured."""

    into: IO[str]
    out: IO[str]

    def __post_init__(self) -> None:
        self.plain: dict[tuple[str, float], dict[str, Any]] = {}

    def figures(self, kind: str, size: float, times: int) -> dict[str, Any]:
        print(kind, size, times, file=self.into, flush=True)
        figures: dict[str, Any] = json.loads(self.out.readline())
        return figures

    def of_plain(self, what: str, size: float, times: int) -> dict[str, Any]:
        if (what, size) not in self.plain:
            self.plain[what, size] = self.figures(f"{what}: plain", size, times)
        return self.plain[what, size]


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
    ("what", "key", "sizes"),
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
def test_whatever_a_string_holds_costs_little_more_than_plain_text(
    meter: Meter, what: str, key: str, sizes: tuple[tuple[int, int], ...], name: str
) -> None:
    for size, times in sizes:
        plain, other = meter.of_plain(what, size, times), meter.figures(f"{what}: {name}{key}", size, times)
        assert other["status"] == plain["status"] == 200
        assert other["cpu_s"] < TIMES * plain["cpu_s"], size
        assert other["memory_bytes"] < TIMES * max(plain["memory_bytes"], size * MB), size


@pytest.mark.parametrize("name", sorted(REQUESTS.keys() - {f"{n}{k}" for n in TEXTS for k in ("", ", and a key")}))
def test_whatever_a_request_is_made_of_costs_little_more_than_to_parse_it(meter: Meter, name: str) -> None:
    kind = f"request: {name}"
    figures = meter.figures(kind, 10, 2)
    assert figures["status"] in (200, 400)
    assert figures["cpu_s"] < TIMES * (meter.of_plain("request", 10, 2)["cpu_s"] + parser_s(kind, 10 * MB))
    assert figures["memory_bytes"] < TIMES * 10 * MB


@pytest.mark.parametrize("name", sorted(ANSWERS.keys() - {f"{n}{k}" for n in TEXTS for k in ("", ", and a key")}))
def test_an_answers_memory_is_bounded_whatever_it_is_made_of(meter: Meter, name: str) -> None:
    assert meter.figures(f"answer: {name}", 20, 1)["memory_bytes"] < TIMES * 20 * MB


@pytest.mark.parametrize(
    ("kind", "size"),
    [("request: strings of 1 kB in tools", 90), ("answer: plain", 31), ("answer: strings of 1 kB", 31)],
)
def test_no_turn_of_the_loop_takes_much_of_what_a_long_call_takes(meter: Meter, kind: str, size: int) -> None:
    figures = meter.figures(kind, size, 3)
    assert figures["status"] == 200
    assert figures["held_s"] < figures["cpu_s"] / 8


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("what", ["stream", "stream in drops"])
def test_a_stream_costs_four_times_as_much_where_it_is_four_times_as_long(meter: Meter, what: str, name: str) -> None:
    size = 0.05 if name.startswith("tiny") else 0.25
    shorter, longer = meter.figures(f"{what}: {name}", size, 3), meter.figures(f"{what}: {name}", 4 * size, 3)
    assert longer["cpu_s"] < 2 * 4 * shorter["cpu_s"]
    assert longer["memory_bytes"] < 16 * MB


@pytest.mark.parametrize(
    "name", ["letters as escapes, and a key", "quotes", "line feeds", "strings of 1 kB", "short strings"]
)
async def test_neighbours_are_served_while_a_long_request_is_read(name: str) -> None:
    house = House(upstream=Taking(), max_body_bytes=100 * MB)
    incoming, small = call_of(f"request: {name}", 80 * MB)
    house.upstream.will(small)
    outgoing, served = Discarding(), 0
    long = asyncio.ensure_future(house.pipeline.handle(incoming, outgoing))
    while incoming.parts:  # what is counted comes after its last byte came
        await asyncio.sleep(0)
    while not outgoing.status and not any(len(call.body) > MB for call in house.upstream.calls):
        house.upstream.will(answer(long_content.SMALL_ANSWER))
        assert (await house.serve(asking())).status == 200
        served += 1
    await long
    assert served > 3


async def test_neighbours_are_served_while_a_long_answer_is_read() -> None:
    house = House(upstream=Taking())
    incoming, long_answer = call_of("answer: letters as escapes, and a key", 30 * MB)
    house.upstream.will(long_answer)
    outgoing, served = Discarding(), 0
    long = asyncio.ensure_future(house.pipeline.handle(incoming, outgoing))
    while not long_answer.ended:
        await asyncio.sleep(0)
    while not long.done():
        house.upstream.will(answer(long_content.SMALL_ANSWER))
        assert (await house.serve(asking())).status == 200
        served += 1
    assert outgoing.status == 200
    assert served > 1
