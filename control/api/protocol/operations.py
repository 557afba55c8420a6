"""The one form of every operation of the management API: declared in a list per file, mounted by `mount`.

An `Operation` is the source of its route, its validation, its OpenAPI entry and its rate limit; `_entry` is the path
every request takes: who, how often, may they, what do they ask, do it, render it.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel

from control.api.protocol import authentication, bodies
from control.api.protocol.authentication import Caller
from control.api.protocol.dependencies import PARTS, Parts
from control.api.protocol.encoding import Encoded, put_together
from control.api.protocol.errors import not_found

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Call:
    """One authenticated, validated request."""

    caller: Caller
    parts: Parts
    path: dict[str, str]
    query: BaseModel | None
    body: BaseModel | None

    def body_as(self, model: type[M]) -> M:
        """The body, as the type that the operation declares."""
        if not isinstance(self.body, model):
            raise TypeError(f"the operation declares another body than {model.__name__}")
        return self.body

    def query_as(self, model: type[M]) -> M:
        """The query parameters, as the type that the operation declares."""
        if not isinstance(self.query, model):
            raise TypeError(f"the operation declares another query than {model.__name__}")
        return self.query


@dataclass(frozen=True, slots=True)
class Operation:
    """What one method on one path does. `errors`: the statuses it may answer beside those that every operation may.

    `answer`: the model of a success (200). `body`, `query`: the models that validate; a body is then required.
    """

    method: str
    path: str
    handler: Callable[[Call], Awaitable[BaseModel | Encoded]]
    summary: str
    answer: type[BaseModel]
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    errors: tuple[int, ...] = ()
    tag: str = "Gateway"


def mount(app: web.Application, operations: Iterable[Operation]) -> None:
    for operation in operations:
        handler = _entry(operation)
        if operation.method == "GET":  # what it answers without its body (RFC 9110 9.3.2)
            app.router.add_get(operation.path, handler, allow_head=True)
        else:
            app.router.add_route(operation.method, operation.path, handler)


def _entry(operation: Operation) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        parts = request.app[PARTS]
        caller = await authentication.authenticate(request, parts.store)
        await parts.throttle.check(caller.key_prefix, operation.method, operation.path)
        authentication.check_may_manage(caller, operation.path)
        parts.last_used.note(caller.key_prefix)
        path = _path_of(request)
        query = await bodies.read_query(request, operation.query)
        sent = await bodies.receive(request) if operation.body is not None else b""
        async with parts.turns.of(caller.workspace_id):
            body = await bodies.read_body(sent, operation.body)
            return await render(await operation.handler(Call(caller, parts, path, query, body)))

    return handle


def _path_of(request: web.Request) -> dict[str, str]:
    """The path's parameters. What no id can look like is not found, before a database is asked."""
    values = dict(request.match_info)
    if any("\0" in value or not value.isprintable() for value in values.values()):
        raise not_found("resource")
    return values


async def render(answer: BaseModel | Encoded) -> web.Response:
    """Encode the JSON as UTF-8."""
    pieces = answer.pieces if isinstance(answer, Encoded) else [answer.model_dump_json(by_alias=True).encode()]
    headers = {"Cache-Control": "no-store"}
    body = await put_together(pieces)
    return web.Response(body=body, headers=headers, content_type="application/json", charset="utf-8")
