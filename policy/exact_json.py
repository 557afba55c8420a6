"""JSON whose numbers stay as they were written: request metadata is the caller's, to be told as the caller sent it.

orjson reads an integer of more than 64 bits as a float, and any float with at most 17 digits. Here such numbers are
kept as text (`orjson.Fragment`), which `orjson.dumps` writes out again.
"""

import json
from collections.abc import Mapping
from typing import Any

import orjson

_INTEGER_CHARS = 19
"""Any integer of so many characters fits into 64 bits."""


def _integer(text: str) -> int | orjson.Fragment:
    return int(text) if len(text) <= _INTEGER_CHARS else orjson.Fragment(text)


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=orjson.Fragment)


def read_object(text: str) -> dict[str, Any]:
    """The members, for `orjson.dumps`. `text` is an object that orjson has accepted. Deep nesting: RecursionError."""
    members: dict[str, Any] = _DECODER.decode(text)
    return members


def has_only_text(members: Mapping[str, Any]) -> bool:
    """Whether all values are strings, as they are in nearly all metadata: then nothing can have been lost."""
    return all(type(value) is str for value in members.values())
