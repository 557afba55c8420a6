"""JSON whose numbers keep their spelling: request metadata is returned exactly as the caller sent it.

orjson turns integers above 64 bits into floats and rounds floats to 17 digits. This module keeps such numbers as text
(`orjson.Fragment`), which `orjson.dumps` writes unchanged.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

_SPACE = re.compile(r"[ \t\n\r]*+")
_INTEGER_CHARS = 19
"""Every integer of at most this many characters fits into 64 bits."""


def _integer(text: str) -> int | orjson.Fragment:
    return int(text) if len(text) <= _INTEGER_CHARS else orjson.Fragment(text)


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=orjson.Fragment)


def read_object(text: str) -> dict[str, Any]:
    """The members of a JSON object that orjson has accepted, for `orjson.dumps`.

    Raises RecursionError on deep nesting.
    """
    members: dict[str, Any] = _DECODER.decode(text)
    return members


def items_of(text: str, name: str) -> Iterator[Any]:
    """Yield the items of the array member `name` of an object, for text too long to parse at once.

    orjson has accepted `text` and found that array.
    """
    at = _skip_space(text, _skip_space(text, 0) + 1)  # the brace
    while True:
        member, at = _DECODER.raw_decode(text, at)
        at = _skip_space(text, _skip_space(text, at) + 1)  # the colon
        if member == name:
            return array_items(text, at)
        _, at = _DECODER.raw_decode(text, at)
        at = _skip_space(text, _skip_space(text, at) + 1)  # the comma


def array_items(text: str, at: int = 0) -> Iterator[Any]:
    """Yield the items of the array that begins at `at`."""
    at = _skip_space(text, at + 1)
    while text[at] != "]":
        item, at = _DECODER.raw_decode(text, at)
        yield item
        at = _skip_space(text, at)
        if text[at] == ",":
            at = _skip_space(text, at + 1)


def _skip_space(text: str, at: int) -> int:
    """The position of the next character that is not white space."""
    space: Any = _SPACE.match(text, at)
    return int(space.end())


def has_only_text(members: Mapping[str, Any]) -> bool:
    """Return whether all values are strings, as in nearly all metadata. No number can have lost its spelling then."""
    return all(type(value) is str for value in members.values())
