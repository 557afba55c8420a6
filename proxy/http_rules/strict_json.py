"""Refuses JSON in which an object has a member twice: parsers differ in which of the two they read. Pure.

Takes several times as long as orjson. So it reads only bodies whose meaning depends on it.
"""

import json
from typing import Any

import orjson

from proxy.refusals import MalformedRequestError

_LONGEST_NAME = 64
"""Most characters of a member's name that an error repeats."""


def are_surely_unique(parsed: dict[str, Any], text: bytes) -> bool:
    """Return whether the text, which was parsed, says nothing more than that, as of a stock client: one pass in C."""
    try:
        return orjson.dumps(parsed) == text
    except orjson.JSONEncodeError:
        return False


def check_members_are_unique(text: bytes) -> None:
    """Raise `MalformedRequestError` for a member that is given twice. `text`: JSON that orjson has accepted."""
    try:
        _DECODER.decode(text.decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise MalformedRequestError("the body is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) == len(names):
        return
    twice = next(name for name in names if names.count(name) > 1)
    raise MalformedRequestError(f"{twice[:_LONGEST_NAME]!r} is given twice in one object")


def _ignored(_number: str) -> int:
    return 0


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_ignored, parse_float=_ignored)
