"""Parses a request's body as a JSON object: short bodies in one step, long ones in slices, within bounds (400)."""

import re
from functools import partial
from typing import Any

import orjson

from proxy.json_text.exact_numbers import loads_beyond_doubles
from proxy.json_text.json_bounds import TooManyValuesError, is_surely_within_bounds
from proxy.json_text.large_json import Outline
from proxy.json_text.sliced_json import parse_at_once, parse_in_slices
from proxy.refusals import MalformedRequestError
from proxy.time_slices import Slices

RESTORED_MEMBERS = ("model", "metadata", "stop_sequences")
"""The members whose strings a stage reads: they never hold a placeholder."""
MAX_RESTORED_BYTES = 512 << 10
"""Most bytes of each of these members, as sent."""

SHORT_BODY_BYTES = 8 << 10
"""Bodies up to this size are parsed without looking for long strings."""

MAX_LENIENT_BYTES = 4 << 20
"""A larger body may hold no half of a surrogate pair: it is parsed in one step."""
MAX_HALVES = 10_000
MAX_NUMBERS_BYTES = 512 << 10
"""A larger body may hold no number beyond a double: it is parsed in one step, ten times as slowly."""
_SURROGATES = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\xed[\xa0-\xbf][\x80-\xbf])"
)
"""The group matches half of a surrogate pair, escaped or in bytes. Pairs and escaped backslashes are passed over."""

RequestJson = tuple[dict[str, Any], Outline | None]


def request_json_at_once(body: bytes) -> RequestJson | None:
    """The object of a body, and the outline if it holds placeholders, in one step, as nearly always.

    Returns None for a body that would block the event loop, or that is not short and is refused by the parser. Raises
    `MalformedRequestError`.
    """
    outline: Outline | None = None
    try:
        if len(body) <= SHORT_BODY_BYTES:
            json = orjson.loads(body)
        elif (parsed := parse_at_once(body)) is None:
            return None
        else:
            json, outline = parsed
    except (orjson.JSONDecodeError, TooManyValuesError) as error:
        return _read_leniently(body, error) if len(body) <= SHORT_BODY_BYTES else None
    if not isinstance(json, dict):
        raise MalformedRequestError("the body must be a JSON object")
    return json, outline


async def request_json_in_slices(body: bytes, workspace: str, slices: Slices) -> RequestJson:
    """The object of any body. What the parser refuses is read leniently in a turn of its own: that takes one step."""
    try:
        json, outline = await slices.run(workspace, parse_in_slices(body), len(body))
    except (orjson.JSONDecodeError, TooManyValuesError) as error:
        return await slices.step(workspace, partial(_read_leniently, body, error))
    if not isinstance(json, dict):
        raise MalformedRequestError("the body must be a JSON object")
    if outline is not None:
        _restore_members(json, outline)
    return json, outline


def _read_leniently(body: bytes, error: Exception) -> RequestJson:
    """The object of a body that `error` refused, if nothing is wrong with it but what most servers take.

    Halves of surrogate pairs, as clients send that cut a text within an emoji, have placeholders, and numbers that no
    double can hold are kept as text: both go on as they were written. Raises `MalformedRequestError`.
    """
    if len(body) > MAX_LENIENT_BYTES or isinstance(error, TooManyValuesError):
        raise _malformed(error) from None
    outline = _with_placeholders(body)
    json = _parsed(body, outline)
    if not isinstance(json, dict):
        raise _malformed(error) from None
    for name in RESTORED_MEMBERS:
        if outline is not None and outline.appears_in(json.get(name)):
            raise MalformedRequestError(f"{name} holds half of a surrogate pair; send whole characters")
    if _is_beyond_doubles(json.get("metadata")):
        raise MalformedRequestError("metadata holds a number that is too large; send it as text")
    return json, outline


def _with_placeholders(body: bytes) -> Outline | None:
    """The outline of a body that holds halves of surrogate pairs; None if there are none, or too many."""
    halves = [match.span(1) for match in _SURROGATES.finditer(body) if match[1]]
    if not halves or len(halves) >= MAX_HALVES:
        return None
    outline = Outline(body)
    for start, end in halves:
        outline.add_placeholder(start, end)
    outline.finish()
    return outline


def _parsed(body: bytes, outline: Outline | None) -> Any:
    """The value of a body; None if it is no JSON, or too large."""
    text = body if outline is None else outline.text
    if not is_surely_within_bounds(text):
        return None
    try:
        if outline is not None:
            return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return loads_beyond_doubles(text) if len(text) <= MAX_NUMBERS_BYTES else None
    except ValueError:
        return None


def _is_beyond_doubles(value: object) -> bool:
    try:
        orjson.loads(orjson.dumps(value))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return True
    return False


def _malformed(error: Exception) -> MalformedRequestError:
    if isinstance(error, TooManyValuesError):
        return MalformedRequestError(f"the body {error}")
    return MalformedRequestError("the body is not valid JSON")


def _restore_members(json: dict[str, Any], outline: Outline) -> None:
    for name in RESTORED_MEMBERS:
        if name in json:
            try:
                json[name] = outline.restored_value(json[name], MAX_RESTORED_BYTES)
            except ValueError as error:
                raise MalformedRequestError(f"{name} holds {error}") from None
