"""Parses a request's body as a JSON object: short bodies in one step, long ones in slices, within bounds (400)."""

from typing import Any

import orjson

from proxy.json_text.json_bounds import TooManyValuesError
from proxy.json_text.large_json import Outline
from proxy.json_text.sliced_json import parse_at_once, parse_in_slices
from proxy.refusals import MalformedRequestError
from proxy.time_slices import Slices

RESTORED_MEMBERS = ("model", "metadata", "stop_sequences")
"""The members whose strings a stage reads: they never hold a placeholder."""
MAX_RESTORED_BYTES = 512 << 10
"""Most bytes of each of these members, as sent."""

SHORT_BODY_BYTES = 8 << 10
"""Bodies up to this size are parsed in one step, without looking for long strings."""

RequestJson = tuple[dict[str, Any], Outline | None]


def short_request_json(body: bytes) -> dict[str, Any]:
    """The object of a body of at most `SHORT_BODY_BYTES`. Raises `MalformedRequestError`."""
    try:
        json = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise MalformedRequestError("the body is not valid JSON") from None
    if not isinstance(json, dict):
        raise MalformedRequestError("the body must be a JSON object")
    return json


def request_json_at_once(body: bytes) -> RequestJson | None:
    """The object of a longer body, and the outline if it holds placeholders, in one step, as nearly always.

    Returns None for a body that would block the event loop. Raises `MalformedRequestError`.
    """
    try:
        parsed = parse_at_once(body)
    except (orjson.JSONDecodeError, TooManyValuesError) as error:
        raise _malformed(error) from None
    if parsed is not None and not isinstance(parsed[0], dict):
        raise MalformedRequestError("the body must be a JSON object")
    return parsed


async def request_json_in_slices(body: bytes, slices: Slices) -> RequestJson:
    """`request_json_at_once` for any body."""
    try:
        json, outline = await slices.run(parse_in_slices(body), len(body))
    except (orjson.JSONDecodeError, TooManyValuesError) as error:
        raise _malformed(error) from None
    if not isinstance(json, dict):
        raise MalformedRequestError("the body must be a JSON object")
    if outline is not None:
        _restore_members(json, outline)
    return json, outline


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
