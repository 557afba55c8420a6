"""`POST /internal/v1/machines`: a supervisor tells which incarnations of its workers may still give events.

What others reserved of spend limits is released. The answer names the trees that wait for the machine to put its
reservations again, which it then tells as `rebuilt` (docs/reference/money.md#how-spend-is-counted). 400 names what is
malformed, and nothing is taken.
"""

from typing import Any

from aiohttp import web

from control.api.protocol.reports import Json, received
from control.errors import InvalidFieldError
from control.resources.spend.machines import note_machine

MAX_INCARNATIONS = 10_000
MAX_TREES = 10_000
_MAX_NAME = 255
_MAX_INCARNATION = 64


async def _post(request: web.Request) -> web.Response:
    dependencies, body = await received(request)
    machine = body.get("machine")
    if not _is_text(machine, _MAX_NAME):
        raise InvalidFieldError("machine", f"machine must be text of 1 to {_MAX_NAME} characters")
    waits = await note_machine(dependencies.store, str(machine), _incarnations(body), _rebuilt(body))
    return web.json_response({"waiting": waits})


def _incarnations(body: Json) -> set[str]:
    incarnations = body.get("incarnations")
    if not isinstance(incarnations, list) or len(incarnations) > MAX_INCARNATIONS:
        message = f"incarnations must be an array of at most {MAX_INCARNATIONS} texts"
        raise InvalidFieldError("incarnations", message)
    for index, incarnation in enumerate(incarnations):
        if not _is_text(incarnation, _MAX_INCARNATION):
            field = f"incarnations.{index}"
            raise InvalidFieldError(field, f"{field} must be text of 1 to {_MAX_INCARNATION} characters")
    return set(incarnations)


def _rebuilt(body: Json) -> dict[str, str]:
    """The states that the machine confirms, by hash key. Supervisors of before HARD limits tell none."""
    rebuilt = body.get("rebuilt", {})
    if not isinstance(rebuilt, dict) or len(rebuilt) > MAX_TREES:
        raise InvalidFieldError("rebuilt", f"rebuilt must be an object of at most {MAX_TREES} texts")
    for key, state in rebuilt.items():
        if not (_is_text(key, _MAX_NAME) and _is_text(state, _MAX_NAME)):
            message = f"rebuilt must be an object whose names and values are text of 1 to {_MAX_NAME} characters"
            raise InvalidFieldError("rebuilt", message)
    return rebuilt


def _is_text(value: Any, longest: int) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= longest and "\0" not in value


ROUTES = [web.post("/internal/v1/machines", _post)]
