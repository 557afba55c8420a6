"""Reads JSON that a strict parser refuses: another encoding, `NaN`, half of a surrogate pair, an end that is cut off.

Also control characters, bytes that are not UTF-8, a byte-order mark, something behind the value.
Pure. Slower than orjson: use it only for what orjson refused.
"""

import codecs
import json
import re
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

LONE_SURROGATE = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""The group matches an escape that is half of a surrogate pair. Pairs and escaped backslashes are passed over."""
_REPLACEMENT = r"\ufffd"
_BYTE_ORDER_MARKS = (
    *(("utf-32-le", codecs.BOM_UTF32_LE), ("utf-32-be", codecs.BOM_UTF32_BE)),
    *(("utf-16-le", codecs.BOM_UTF16_LE), ("utf-16-be", codecs.BOM_UTF16_BE)),
)
_ZEROS = (("utf-32-be", b"\0\0\0."), ("utf-32-le", b".\0\0\0"), ("utf-16-be", b"\0."), ("utf-16-le", b".\0"))
"""Places of the zero bytes of an ASCII character (RFC 4627 3)."""
_BETWEEN = re.compile(r"[\0 \t\r\n,]*+")
"""Text that may stand between two values, and after the last one."""
_DECODER = json.JSONDecoder(strict=False)
_STRING_OR_MARK = re.compile(r'"(?:[^"\\]++|\\.)*+("?)|[\[\]{},]', re.DOTALL)
_PARTIAL_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{0,3}\Z")
_MAX_REPAIRS = 8
"""Number of places at which cutting off a text is tried, from its end on."""
_CLOSING = {"{": "}", "[": "]"}


Brackets = tuple[str, "Brackets"] | None
"""The innermost open bracket, and the ones around it."""


class Encoding(NamedTuple):
    """The encoding of a text, and its byte-order mark."""

    name: str
    mark: bytes = b""


UTF_8 = Encoding("utf-8")


def encoding_of(text: bytes) -> Encoding:
    """The encoding of a JSON text, by its first bytes."""
    for name, mark in _BYTE_ORDER_MARKS:
        if text.startswith(mark):
            return Encoding(name, mark)
    for name, pattern in _ZEROS:
        if len(text) >= len(pattern) and all((a == 0) == (b == 0) for a, b in zip(text, pattern, strict=False)):
            return Encoding(name)
    return UTF_8


def parse_leniently(raw: bytes) -> Any:
    """The JSON value that `raw` begins with. Raises ValueError if there is none, or if another one follows it.

    Half of a surrogate pair becomes U+FFFD.
    """
    text = _decoded(raw)
    try:
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        raise ValueError("no JSON value") from None
    if text[end:].lstrip("\0 \t\r\n,").startswith(("{", "[")):
        raise ValueError("more than one value")
    return value


def values_that_came(raw: bytes) -> list[Any]:
    """The JSON values of a text, the last of which may be cut off, as far as they came. Empty if it is no JSON."""
    text = _decoded(raw)
    values: list[Any] = []
    at = 0
    while at < len(text):
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return values + _value_that_came(text[at:])
        values.append(value)
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it always matches
    return values


def _value_that_came(text: str) -> list[Any]:
    for cut, ending in _repairs(text):
        try:
            return [_DECODER.raw_decode(text[:cut] + ending)[0]]
        except (ValueError, RecursionError):
            continue
    return []


def _decoded(raw: bytes) -> str:
    encoding = encoding_of(raw)
    text = raw[len(encoding.mark) :].decode(encoding.name, "replace").lstrip("\ufeff\0 \t\r\n")
    if r"\u" in text:
        text = LONE_SURROGATE.sub(lambda match: _REPLACEMENT if match[1] else match[0], text)
    return text


def _repairs(text: str) -> Iterator[tuple[int, str]]:
    """Offsets to cut the text at, and what completes it there; the last one first."""
    open_brackets: Brackets = None
    places: deque[tuple[int, str, Brackets]] = deque(maxlen=_MAX_REPAIRS)
    for match in _STRING_OR_MARK.finditer(text):
        mark = match[0]
        if mark in "{[":
            open_brackets = (mark, open_brackets)
        elif mark in "}]":
            open_brackets = open_brackets[1] if open_brackets is not None else None
        elif mark == ",":
            places.append((match.start(), "", open_brackets))
        elif not match[1]:  # the end of the text is inside a string
            partial = _PARTIAL_ESCAPE.search(text, match.start(), match.end())
            places.append((partial.start() if partial else match.end(), '"', open_brackets))
    places.append((len(text), "", open_brackets))
    return ((cut, quote + _closing(brackets)) for cut, quote, brackets in reversed(places))


def _closing(open_brackets: Brackets) -> str:
    closing = []
    while open_brackets is not None:
        bracket, open_brackets = open_brackets
        closing.append(_CLOSING[bracket])
    return "".join(closing)
