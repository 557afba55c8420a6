"""Reads JSON whose bulk is a few long strings, as a prompt with a document or a picture is; means what orjson means.

Pure. A parser looks at a string byte by byte, for its end, for escapes, and for what may not stand in it. Where it is
plain ASCII, each of these is asked of the whole string at once, which takes half as long.
"""

import re
import secrets
from collections.abc import Iterator
from typing import Any

import orjson

LONG_BYTES = 16 << 10
"""A string from here on is read by itself; a text of less than two such is parsed as it is."""
SHORT_STRINGS = 64
"""After more than these, going from string to string is no longer the faster way."""
PROBE_BYTES = 2 << 10
"""So much of a string shows whether it is worth the look: prose has a line's end in it, or a letter beyond ASCII."""
PIECE = 1 << 16
"""Characters looked at together: what is made of them to tell stays in the cache, and is no second body in memory."""

_QUOTE = b'"'
_BACKSLASH = b"\\"
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def loads(raw: bytes) -> Any:
    """What `orjson.loads` makes of `raw`; raises what it raises.

    Parsed is `raw` with a short stand-in for each long plain string. Then the strings take their places.
    """
    if len(raw) < 2 * LONG_BYTES:
        return orjson.loads(raw)
    name = secrets.token_hex(16)  # no text can hold it
    texts: dict[str, str] = {}
    rest: list[bytes] = []
    done = 0
    for start, end in _long_strings(raw):
        text = _plain(raw, start, end)
        if text is not None:
            stand_in = f"{name}{len(texts)}"
            texts[stand_in] = text
            rest += raw[done:start], stand_in.encode()
            done = end
    if len(raw) - done + sum(map(len, rest)) > len(raw) // 2:
        return orjson.loads(raw)
    parsed = orjson.loads(b"".join((*rest, raw[done:])))
    return parsed if _put_back(parsed, texts) else orjson.loads(raw)


def _long_strings(raw: bytes) -> Iterator[tuple[int, int]]:
    """Where the inside of each long string begins and ends. As far as `raw` is JSON, its strings are found as here."""
    at, short = raw.find(_QUOTE), 0
    while at >= 0 and short < SHORT_STRINGS:
        end = _end(raw, at)
        if end < 0:
            return
        if end - at > LONG_BYTES:
            yield at + 1, end
        else:
            short += 1
        at = raw.find(_QUOTE, end + 1)


def _end(raw: bytes, start: int) -> int:
    """Where the quote stands that ends the string that begins at `start`; -1 where that takes a look at each byte."""
    end = raw.find(_QUOTE, start + 1)
    if end < 0 or raw[end - 1] != _BACKSLASH[0]:
        return end
    match = _STRING.match(raw, start, start + PROBE_BYTES)
    return match.end() - 1 if match else -1


def _plain(raw: bytes, start: int, end: int) -> str | None:
    """The inside of a string as its text; None where it holds an escape, more than ASCII, or what JSON forbids."""
    if not raw[start : start + PROBE_BYTES].isascii() or raw.find(_BACKSLASH, start, end) >= 0:
        return None
    try:
        text = str(memoryview(raw)[start:end], "ascii")
    except UnicodeDecodeError:
        return None
    for at in range(0, len(text), PIECE):
        piece = text[at : at + PIECE]
        if len(orjson.dumps(piece)) != len(piece) + 2:  # it wrote an escape, as for any control character
            return None
    return text


def _put_back(parsed: Any, texts: dict[str, str]) -> bool:
    """Replace the stand-ins among the values of `parsed`. False when some are not there: they are keys, or gone."""
    missing, todo = len(texts), [parsed]
    while missing and todo:
        place = todo.pop()
        if isinstance(place, dict):
            pairs: Any = place.items()
        elif isinstance(place, list):
            pairs = enumerate(place)
        else:
            return False
        for key, value in pairs:
            if isinstance(value, str):
                if value in texts:
                    place[key] = texts[value]  # the number of keys stays, so the walk may go on
                    missing -= 1
            elif isinstance(value, dict | list):
                todo.append(value)
    return not missing
