"""Every regular expression of the product takes linear time and bounded memory on hostile text.

Finds the patterns in the modules, so that new ones are tested too.
"""

import importlib
import pkgutil
import re
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from time import thread_time
from types import ModuleType
from typing import Any

import pytest

import control
import policy
import proxy
from proxy.dialects.finish import EventRoles
from proxy.dialects.stream_readers import StreamFormat

SHORT = 4_000
LONG = 40_000
GROWTH = 4 * LONG / SHORT
"""Four times the time per byte for the longer text; quadratic time would take ten times."""
FLOOR_S = 0.001
"""Shortest time that counts: below it is the noise of clock ticks and caches."""
MEASUREMENTS = 20
"""A busy machine makes single measurements longer, never shorter."""
UNITS = (
    *("a", " ", "\n", "\r\n", "\r", ":", ",", "/", "%", ".", "-", "1", '"', "\\", '\\"', "\\\\", "\\u0061", "[", "{}"),
    *(
        "{,",
        " ,",
        '"a":',
        "\t:",
        'data: {"',
        "data:\n",
        ": \n",
        'data: {, "model"',
        '{"model" :"',
        '"usage": null ',
        "é",
    ),
    *('"content": "', "event: message_stop", "data:image/", "a.", "%2e/", "a-", "tg_", 'data: {"type"', "0x", "x\r"),
)
BEFORE = (
    "",
    '"',
    "data: {",
    '{"model":"',
    "data:",
    "data:a/",
    '"usage":',
    '"usage":null',
    ":",
    "/",
    "https://a",
    "tg_abcdefghijkl.",
)


def patterns() -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    for package in (policy, proxy, control):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__") and "migrations" not in module.name:
                yield from of_module(importlib.import_module(module.name))


def of_module(module: ModuleType) -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    """Name, pattern, and whether it is used in a search, not only matched at one offset."""
    source = Path(module.__file__ or "").read_text()
    for name, value in vars(module).items():
        roles = value.roles if isinstance(value, StreamFormat) else None
        for pattern in [value, *(pattern for pattern, _ in roles.kinds)] if isinstance(roles, EventRoles) else [value]:
            if isinstance(pattern, re.Pattern):
                searched = re.search(rf"\b{name}\.(search|finditer|findall|sub|split)\b", source)
                kind = "" if pattern is value else f" {pattern.pattern!r}"
                yield f"{module.__name__}.{name}{kind}", pattern, searched is not None


PATTERNS = {name: (pattern, searched) for name, pattern, searched in patterns()}


def spent_s(use: Callable[[Any], object], text: str | bytes) -> float:
    before = thread_time()
    use(text)
    return thread_time() - before


def test_patterns_are_found() -> None:
    assert {
        "proxy.json_text.json_edit._STRING",
        "policy.hosts._PATH",
        "control.api.protocol.times._FORM",
    } <= PATTERNS.keys()


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_takes_linear_time(name: str) -> None:
    pattern, searched = PATTERNS[name]
    for before, unit in product(BEFORE, UNITS):
        texts = [before + unit * (size // len(unit)) for size in (SHORT, LONG)]
        short, long = (text.encode() if isinstance(pattern.pattern, bytes) else text for text in texts)
        use = pattern.search if searched else pattern.match
        if spent_s(use, long) > FLOOR_S:
            short_s, long_s = (min(spent_s(use, text) for _ in range(MEASUREMENTS)) for text in (short, long))
            assert long_s < max(GROWTH * short_s, FLOOR_S), (before, unit)


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_takes_little_memory(name: str) -> None:
    pattern, searched = PATTERNS[name]
    for before, unit in product(BEFORE[:2], UNITS):
        text = before + unit * (LONG // len(unit))
        raw = text.encode() if isinstance(pattern.pattern, bytes) else text
        tracemalloc.start()
        try:
            (pattern.search if searched else pattern.match)(raw)
            assert tracemalloc.get_traced_memory()[1] < 5 * LONG, (before, unit)
        finally:
            tracemalloc.stop()
