"""JSON whose numbers stay as they were written: request metadata is the caller's, to be told as the caller sent it.

orjson reads an integer of more than 64 bits as a float, and any float with at most 17 digits. Here such numbers are
kept as text (`orjson.Fragment`), which `orjson.dumps` writes out again.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

_SPACE = re.compile(r"[ \t\n\r]*+")
_INTEGER_CHARS = 19
"""Any integer of so many characters fits into 64 bits."""


def _integer(text: str) -> int | orjson.Fragment:
    return int(text) if len(text) <= _INTEGER_CHARS else orjson.Fragment(text)


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=orjson.Fragment)


def read_object(text: str) -> dict[str, Any]:
    """The members, for `orjson.dumps`. `text` is an object that orjson has accepted. Deep nesting: RecursionError."""
    members: dict[str, Any] = _DECODER.decode(text)
    return members


def items_of(text: str, name: str) -> Iterator[Any]:
    """The items of the array that is the member `name` of an object, one by one, for text that is too long to be read
    at once. orjson has accepted `text` and found that array."""
    at = _behind(text, _behind(text, 0) + 1)  # the brace
    while True:
        member, at = _DECODER.raw_decode(text, at)
        at = _behind(text, _behind(text, at) + 1)  # the colon
        if member == name:
            return array_items(text, at)
        _, at = _DECODER.raw_decode(text, at)
        at = _behind(text, _behind(text, at) + 1)  # the comma


def array_items(text: str, at: int = 0) -> Iterator[Any]:
    """The items of the array that begins at `at`."""
    at = _behind(text, at + 1)
    while text[at] != "]":
        item, at = _DECODER.raw_decode(text, at)
        yield item
        at = _behind(text, at)
        if text[at] == ",":
            at = _behind(text, at + 1)


def _behind(text: str, at: int) -> int:
    """The place of what is no white space."""
    space: Any = _SPACE.match(text, at)
    return int(space.end())


def has_only_text(members: Mapping[str, Any]) -> bool:
    """Whether all values are strings, as they are in nearly all metadata: then nothing can have been lost."""
    return all(type(value) is str for value in members.values())
