"""Parses JSON whose numbers must keep their spelling: tool arguments and schemas belong to callers and models.

Pure. orjson turns integers above 64 bits into floats, rounds floats to 17 digits and refuses `1e400`. Numbers that it
would write in another way are kept as text (`orjson.Fragment`), which `orjson.dumps` writes unchanged.
"""

import json
import re
from math import isfinite
from typing import Any

import orjson

_ALIKE = bytes.maketrans(b"123456789.E", b"0000000000e")
_LONG_DIGITS = b"0" * 16
_EXPONENT = b"0e"
_SUSPECT = re.compile(rb"[\s:,\[]-?(?:\d[\d.]{15}|\d[\d.]*[eE])|\A-?(?:\d[\d.]{15}|\d[\d.]*[eE])")
"""A number of at least 16 characters, or with an exponent. Every other one is written as it was read."""
_INTEGER_CHARS = 18
"""Every integer of at most this many characters fits into 64 bits."""
_LONGEST_INTEGER_CHARS = 20
_ORJSON_INTEGERS = range(-(1 << 63), 1 << 64)


def loads_exactly(text: bytes | str) -> Any:
    """Return the value of `text`, for `orjson.dumps`. Accepts what orjson does, and numbers that no double can hold.

    Raises `orjson.JSONDecodeError`.
    """
    encoded = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        if not _may_round(encoded):
            raise
        exact = _kept(encoded)
        if exact is None:
            raise
        return exact
    return exact_value(value, encoded)


def loads_beyond_doubles(text: bytes) -> Any:
    """The value of `text` as orjson would read it, had it not refused numbers that no double can hold: those are kept.

    Slower than orjson: use it only for what orjson refused. Raises ValueError.
    """
    value = _kept(text, _BEYOND_DOUBLES) if _may_round(text) else None
    if value is None:
        raise ValueError("no JSON value")
    return value


def exact_value(value: Any, text: bytes) -> Any:
    """Return `value`, which orjson read from `text`, with its numbers exact."""
    if not _may_round(text):
        return value
    exact = _kept(text)
    return value if exact is None else exact


def with_exact_members(parsed: dict[str, Any], text: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    """`parsed`, which orjson read from `text`, with the numbers kept inside the members of these `names`."""
    exact = exact_value(parsed, text)
    return parsed if exact is parsed else parsed | {name: exact[name] for name in names if name in exact}


def _may_round(text: bytes) -> bool:
    """Return whether `text` may hold a number that orjson would change. Nearly always two searches rule it out."""
    alike = text.translate(_ALIKE)
    return (_LONG_DIGITS in alike or _EXPONENT in alike) and _SUSPECT.search(text) is not None


def _kept(text: bytes, decoder: json.JSONDecoder | None = None) -> Any:
    """The value, with the numbers kept that the decoder keeps.

    None for what only a lenient parser accepts, and for very deep nesting.
    """
    try:
        value = (decoder or _DECODER).decode(text.decode())
        orjson.dumps(value)  # refuses lone surrogates, which this parser lets pass
    except (ValueError, RecursionError, orjson.JSONEncodeError):
        return None
    return value


def _integer(digits: str) -> int | orjson.Fragment:
    return int(digits) if len(digits) <= _INTEGER_CHARS else orjson.Fragment(digits)


def _float(digits: str) -> float | orjson.Fragment:
    value = float(digits)
    return value if repr(value) == digits else orjson.Fragment(digits)


def _integer_as_read(digits: str) -> int | float | orjson.Fragment:
    if len(digits) <= _LONGEST_INTEGER_CHARS and (value := int(digits)) in _ORJSON_INTEGERS:
        return value
    return _float_as_read(digits)


def _float_as_read(digits: str) -> float | orjson.Fragment:
    value = float(digits)
    return value if isfinite(value) else orjson.Fragment(digits)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=_refuse_constant)
_BEYOND_DOUBLES = json.JSONDecoder(
    parse_int=_integer_as_read, parse_float=_float_as_read, parse_constant=_refuse_constant
)
