"""Operations of the management API: each file declares a list of them, `mount` adds their routes.

An `Operation` defines its route, who may call it, its validation, its OpenAPI entry and its rate limit. `_entry` is the
path of every request: authenticate, throttle, authorize, validate, handle, render. What a handler writes is audited.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel

from control.api.changes.conditions import condition_of, not_modified
from control.api.changes.idempotency import Content, alone_with, answered_once, idempotency_key
from control.api.changes.request_ids import request_id_of
from control.api.protocol import authentication, bodies
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.encoding import Encoded, encoded, joined
from control.api.protocol.origins import origin_of
from control.dependencies import Dependencies, Store
from control.errors import NotFoundError
from control.records.audit import Actor
from control.records.policy import PresentedKey
from policy.keys.permissions import Permission

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One authenticated, validated request. What it changes through its store is audited as its caller's."""

    caller: PresentedKey
    dependencies: Dependencies
    path: dict[str, str]
    query: BaseModel | None
    body: BaseModel | None
    origin: str
    """`https://tollgate.example`: how this caller reaches control; for links in its answer."""

    @property
    def store(self) -> Store:
        return self.dependencies.store

    @property
    def workspace_id(self) -> str:
        return self.caller.workspace_id

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
    """One method on one path. `errors`: the statuses that it may answer besides those of every operation.

    `answer`: the model of a success (200). `body`, `query`: the models that validate; a body is then required.
    `needs`: the permission of whoever may call it. It has no default: none is right for an operation to come.
    `is_tagged`: it evaluates `If-Match` unless it creates, and its handler answers `ETag` unless it deletes.
    `creates`: a repeat would create another thing, so it takes an `Idempotency-Key`.
    `also_at`: a path that some clients write instead; the description does not have it.
    """

    method: str
    path: str
    handler: Callable[[ApiRequest], Awaitable[BaseModel | Encoded]]
    summary: str
    answer: type[BaseModel]
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    errors: tuple[int, ...] = ()
    needs: Permission = field(kw_only=True)
    creates: bool = field(default=False, kw_only=True)
    also_at: str | None = None
    is_tagged: bool = field(default=False, kw_only=True)


def mount(app: web.Application, operations: Iterable[Operation]) -> None:
    for operation in operations:
        handler = _entry(operation)
        if operation.method == "GET":  # HEAD answers as GET, without the body (RFC 9110 9.3.2)
            app.router.add_get(operation.path, handler, allow_head=True)
        else:
            app.router.add_route(operation.method, operation.path, handler)
        if operation.also_at is not None:
            app.router.add_route(operation.method, operation.also_at, handler)


def _entry(operation: Operation) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        dependencies = request.app[DEPENDENCIES]
        caller = await authentication.authenticate_for_api(request, dependencies)
        await dependencies.throttle.check(caller.prefix, operation.method, operation.path)
        authentication.check_may_manage(caller, operation.path)
        if caller.person is None:
            dependencies.last_used.note(caller.prefix)
        authentication.check_permission(caller, operation.needs)
        path = path_parameters(request)
        condition = condition_of(request, is_tagged=operation.is_tagged)
        query = bodies.read_query(request, operation.query)
        text = await bodies.receive(request) if operation.body is not None else b""
        key = idempotency_key(request, caller) if operation.creates else None
        async with alone_with(key, dependencies), dependencies.turns.of(caller.workspace_id):
            body = await bodies.read_body(caller.workspace_id, text, operation.body)
            acting = dependencies.store.acting_as(Actor(caller.actor, request_id_of(request))).on_condition(condition)

            async def answer(parts: Dependencies) -> Encoded:
                api_request = ApiRequest(caller, parts, path, query, body, origin_of(request))
                return encoded(await operation.handler(api_request))

            parts = replace(dependencies, store=acting)
            content = Content(text, list(request.query.items()) if operation.query is not None else ())
            result = await answered_once(key, content, parts, answer)
            return not_modified(request, condition, result) or _rendered(result)

    return handle


def path_parameters(request: web.Request) -> dict[str, str]:
    """The path's parameters. 404 for text that cannot be an id, before the database is queried."""
    values = dict(request.match_info)
    if any("\0" in value or not value.isprintable() for value in values.values()):
        raise NotFoundError
    return values


def _rendered(answer: Encoded) -> web.Response:
    body = joined(answer.pieces)
    headers = {"Cache-Control": "no-store", **answer.headers}
    return web.Response(body=body, headers=headers, content_type="application/json", charset="utf-8")
