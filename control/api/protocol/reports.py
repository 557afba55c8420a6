"""Bodies of the internal API: what proxies and trainers report. A 400 names the first thing that is malformed.

See docs/reference/management-api.md#internal-api.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from aiohttp import web

from control.api.protocol import authentication
from control.api.protocol.bodies import receive_batch
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.errors import bad_request
from control.dependencies import Dependencies
from control.errors import InvalidFieldError
from control.long_work import OPERATOR, beside

T = TypeVar("T")
Json = dict[str, Any]
MAX_ITEMS = 1000
_MALFORMED = (KeyError, TypeError, ValueError)


async def received(request: web.Request) -> tuple[Dependencies, Json]:
    """The body of a call that carries the internal token; 401 without it."""
    dependencies = request.app[DEPENDENCIES]
    authentication.check_internal(request, dependencies.settings.internal_token)
    return dependencies, json_object(await receive_batch(request))


def json_object(text: bytes) -> Json:
    try:
        body = orjson.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise bad_request("The body must be a JSON object")
    return body


async def items(body: Json, name: str, read: Callable[[Json], T], most: int = MAX_ITEMS) -> list[T]:
    """The members of a list, read. The error names the first malformed one."""
    wires = body.get(name)
    if not isinstance(wires, list) or len(wires) > most:
        raise InvalidFieldError(name, f"{name} must be an array of at most {most} items")

    def all_read() -> list[T]:
        return [read_object(f"{name}.{index}", wire, read) for index, wire in enumerate(wires)]

    return await beside(OPERATOR, len(wires), all_read)


def read_object(field: str, wire: Any, read: Callable[[Json], T]) -> T:
    """`read(wire)`, where it raises KeyError, TypeError or ValueError for what is malformed. `field` says where."""
    try:
        if not isinstance(wire, dict):
            raise ValueError("must be an object")
        return read(wire)
    except _MALFORMED as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise InvalidFieldError(field, f"{field} is malformed: {reason}") from None
