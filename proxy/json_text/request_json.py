"""A request's body as JSON: short ones at once, long ones in slices, and none that holds absurdly much (400)."""

from typing import Any

import orjson

from proxy.json_text.json_bounds import TooManyValuesError
from proxy.json_text.large_json import Outline
from proxy.json_text.sliced_json import read_short, reading
from proxy.refusals import MalformedRequestError
from proxy.time_slices import Slices

READ = ("model", "metadata", "stop_sequences")
"""The members whose strings a stage reads."""
MAX_READ_BYTES = 512 << 10
"""Of each of them, as it was sent."""

RequestJson = tuple[dict[str, Any], Outline | None]


async def request_json(body: bytes, slices: Slices) -> RequestJson:
    """The object, and what placeholders are in it. Raises `MalformedRequestError`."""
    try:
        read = read_short(body)  # nearly all are
        json, outline = read if read is not None else await slices.run(reading(body), len(body))
    except orjson.JSONDecodeError:
        raise MalformedRequestError("the body is not valid JSON") from None
    except TooManyValuesError as error:
        raise MalformedRequestError(f"the body {error}") from None
    if not isinstance(json, dict):
        raise MalformedRequestError("the body must be a JSON object")
    if outline is not None:
        _spell_out(json, outline)
    return json, outline


def _spell_out(json: dict[str, Any], outline: Outline) -> None:
    for name in READ:
        if name in json:
            try:
                json[name] = outline.whole(json[name], MAX_READ_BYTES)
            except ValueError as error:
                raise MalformedRequestError(f"{name} holds {error}") from None
