"""`/console/usage/keys`: the keys of a group, for its own people who logged in with one. Never by link.

See docs/reference/console.md#keys-of-customers.
"""

from typing import Any

from aiohttp import web
from pydantic import BaseModel

from control.api.changes.request_ids import request_id_of
from control.api.console.console_sessions import received_body
from control.api.console.usage_views import NOT_STORED, UsageView, session_handler
from control.api.federated_keys.operations import RotateKeyRequestV1
from control.api.federated_keys.settings import ExpiryTime, Networks
from control.api.protocol.bodies import read_query, valid_body
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.errors import ProblemError
from control.api.protocol.operations import path_parameters
from control.api.protocol.schemas import Name, PageQueryV1, RequestV1
from control.dependencies import Dependencies, Store
from control.records.audit import Actor
from control.records.policy import KeyRecord
from control.records.times import time_text
from control.resources.changes.shown import shown_key_name, shown_key_settings
from control.resources.console import usage_keys
from control.resources.console.usage_keys import CustomerKeys, WishedKey
from control.resources.federated_keys.rules import GroupKeys

_CURSOR_KIND = "customer keys"
_PATH = "/console/usage/keys"
_MEMBERS = ("state", "expires_at", "replaced_by")
"""The settings that the page shows."""


class CreateCustomerKeyRequestV1(RequestV1):
    """A key that may do as much as the one that logged in, or less."""

    name: Name | None = None
    expires_at: ExpiryTime | None = None
    allowed_ips: Networks | None = None


def manages_keys(dependencies: Dependencies, view: UsageView) -> bool:
    """Return whether a viewer may manage keys: the operator lets customers do it, and he logged in with a key."""
    return dependencies.settings.portal_keys and view.prefix is not None


async def _list(request: web.Request, view: UsageView) -> web.Response:
    customer = _customer(request, view)
    query = read_query(request, PageQueryV1)
    assert isinstance(query, PageQueryV1)
    dependencies = request.app[DEPENDENCIES]
    after: tuple[int, str] | None = None
    limit = query.limit
    if query.cursor is not None:
        at_ms, prefix, limit = dependencies.cursors.open(view.workspace_id, _kind(view), query.cursor)["after"]
        after = (at_ms, prefix)
    keys = await usage_keys.read_customer_keys(dependencies.store, customer, after, limit + 1)
    page = keys[:limit]
    cursor = None
    if len(keys) > limit:
        last = page[-1].record
        pinned = {"after": [last.created_at_ms, last.prefix, limit]}
        cursor = dependencies.cursors.sign(view.workspace_id, _kind(view), pinned)
    items = [
        {**_shown(key.record), "may_change": key.may_change, "own": key.record.prefix == view.prefix} for key in page
    ]
    return _answer({"items": items, "pagination": {"has_more": cursor is not None, "cursor": cursor}})


async def _post(request: web.Request, view: UsageView) -> web.Response:
    customer = _customer(request, view)
    body = await _body(request, view, CreateCustomerKeyRequestV1)
    assert isinstance(body, CreateCustomerKeyRequestV1)
    wish = WishedKey(body.name, body.expires_at, tuple(body.allowed_ips or ()))
    key, record = await usage_keys.create_customer_key(_store(request, customer), customer, wish)
    return _answer({"api_key": key, **_shown(record)})


async def _rotate(request: web.Request, view: UsageView) -> web.Response:
    customer = _customer(request, view)
    body = await _body(request, view, RotateKeyRequestV1)
    assert isinstance(body, RotateKeyRequestV1)
    prefix = path_parameters(request)["prefix"]
    rotation = await usage_keys.rotate_customer_key(_store(request, customer), customer, prefix, body.overlap_seconds)
    replaces = {"prefix": rotation.replaced.prefix, "expires_at": time_text(rotation.end_ms)}
    return _answer({"api_key": rotation.key, **_shown(rotation.record), "replaces": replaces})


async def _delete(request: web.Request, view: UsageView) -> web.Response:
    customer = _customer(request, view)
    await request.app[DEPENDENCIES].throttle.check_customer_keys(view.group.id)
    prefix = path_parameters(request)["prefix"]
    await usage_keys.revoke_customer_key(_store(request, customer), customer, prefix)
    return _answer({"prefix": prefix, "deleted": True})


def _customer(request: web.Request, view: UsageView) -> CustomerKeys:
    """The group's keys, if the operator lets its people manage them; 404 otherwise."""
    if not manages_keys(request.app[DEPENDENCIES], view) or view.prefix is None:
        raise ProblemError(404, "NOT_FOUND", "Keys are managed by whoever runs this Tollgate; ask them for one")
    return CustomerKeys(GroupKeys(view.workspace_id, view.group.id), view.prefix)


async def _body(request: web.Request, view: UsageView, model: type[RequestV1]) -> BaseModel:
    body = valid_body(await received_body(request), model)
    await request.app[DEPENDENCIES].throttle.check_customer_keys(view.group.id)
    return body


def _store(request: web.Request, customer: CustomerKeys) -> Store:
    """The store, whose changes are audited as the caller's key's."""
    return request.app[DEPENDENCIES].store.acting_as(Actor(customer.prefix, request_id_of(request)))


def _kind(view: UsageView) -> str:
    return f"{_CURSOR_KIND} {view.group.id}"


def _shown(record: KeyRecord) -> dict[str, Any]:
    settings = shown_key_settings(record)
    return {**shown_key_name(record), **{name: settings[name] for name in _MEMBERS}}


def _answer(members: dict[str, Any]) -> web.Response:
    return web.json_response(members, headers=NOT_STORED)


ROUTES = [
    web.get(_PATH, session_handler(_list)),
    web.post(_PATH, session_handler(_post)),
    web.post(f"{_PATH}/{{prefix}}/rotate", session_handler(_rotate)),
    web.delete(f"{_PATH}/{{prefix}}", session_handler(_delete)),
]
