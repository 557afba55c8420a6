"""`/console/session`: log in with an API key, ask who is logged in, choose a workspace, log out.

The cookie is for this host's own pages alone, and no script can read it.

See docs/reference/console.md#sessions.
"""

from dataclasses import asdict
from typing import Any

from aiohttp import web
from pydantic import Field

from control.api.protocol import authentication
from control.api.protocol.authentication import CONSOLE_COOKIE, check_own_origin, session_token
from control.api.protocol.bodies import valid_body
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.errors import ProblemError
from control.api.protocol.origins import origin_of
from control.api.protocol.schemas import RequestV1
from control.records.audit import Person
from control.records.console import WorkspaceChoice
from control.records.times import time_text
from control.resources.console import console_sessions
from control.resources.console.console_sessions import ConsoleSession, token_digest
from control.resources.console.login import people
from control.resources.console.visitors import Visitor, read_visitor
from control.resources.keys import find_presented_keys
from policy.credentials import KeyKind, may_manage
from policy.keys.permissions import Permission, roles_with

PATH = "/console/session"
_MAX_BODY_BYTES = 4096
_NOT_STORED = {"Cache-Control": "no-store"}


class LoginRequestV1(RequestV1):
    """A login."""

    api_key: str = Field(min_length=1, max_length=1024)


class ChooseWorkspaceRequestV1(RequestV1):
    """The choice of a person who has several workspaces, or several roles in one."""

    workspace_id: str = Field(min_length=1, max_length=255)
    role: str = Field(min_length=1, max_length=16)


async def session_of(request: web.Request) -> ConsoleSession:
    """The session that a request of a page acts in, within the request limits of its key; 401 without one.

    403 for a write that no page of ours sent.
    """
    dependencies = request.app[DEPENDENCIES]
    session = await authentication.session_of(request, dependencies)
    if session is None:
        raise ProblemError(401, "UNAUTHORIZED", "Unauthorized")
    check_own_origin(request)
    await dependencies.throttle.check(session.caller.prefix, request.method, request.path)
    return session


async def _log_in(request: web.Request) -> web.Response:
    check_own_origin(request)  # else another page could log its visitors in with a key of its own
    dependencies = request.app[DEPENDENCIES]
    body = valid_body(await received_body(request), LoginRequestV1)
    assert isinstance(body, LoginRequestV1)
    holders = await find_presented_keys(dependencies.store, [body.api_key])
    if not holders:
        raise ProblemError(403, "AUTHENTICATION_FAILED", "Authentication failed")
    request[authentication.CALLER] = holders[0]
    await dependencies.throttle.check(holders[0].prefix, request.method, PATH)
    if holders[0].kind is not KeyKind.FEDERATED:  # whose use is a call
        dependencies.last_used.note(holders[0].prefix)
    token = await console_sessions.begin_session(dependencies.store, body.api_key, session_token(request))
    answer = web.Response(status=204, headers=_NOT_STORED)
    set_session_cookie(request, answer, token, console_sessions.VALID_MS // 1000)
    return answer


async def received_body(request: web.Request) -> bytes:
    """The body of a small request of a page, declared as JSON."""
    if request.content_type != "application/json":
        raise ProblemError(415, "UNSUPPORTED_MEDIA_TYPE", "Content-Type must be application/json")
    body = b""
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise ProblemError(413, "REQUEST_ENTITY_TOO_LARGE", f"The body has more than {_MAX_BODY_BYTES} bytes")
    return body


async def _get(request: web.Request) -> web.Response:
    dependencies = request.app[DEPENDENCIES]
    person, choices = await _choices(request)
    if person is not None and await authentication.session_of(request, dependencies) is None:
        await dependencies.throttle.check(person.prefix, request.method, request.path)
        members: dict[str, Any] = {"person": person.name, "workspace": None, "choices": _shown_choices(choices)}
    else:
        session = await session_of(request)
        visitor = await read_visitor(dependencies.store, session)
        members = _shown(session, visitor, dependencies.settings.proxy_url) | {"choices": _shown_choices(choices)}
    return web.json_response(members, headers=_NOT_STORED)


async def _choose(request: web.Request) -> web.Response:
    """Act in one of the workspaces that the person's login gives. No page of another site may choose."""
    check_own_origin(request)
    person, choices = await _choices(request)
    token = session_token(request)
    if person is None or token is None:
        raise ProblemError(401, "UNAUTHORIZED", "Unauthorized")
    dependencies = request.app[DEPENDENCIES]
    await dependencies.throttle.check(person.prefix, request.method, request.path)
    body = valid_body(await received_body(request), ChooseWorkspaceRequestV1)
    assert isinstance(body, ChooseWorkspaceRequestV1)
    await people.choose(dependencies.store, token_digest(token), choices, body.workspace_id, body.role)
    return web.Response(status=204, headers=_NOT_STORED)


async def _choices(request: web.Request) -> tuple[Person | None, list[WorkspaceChoice]]:
    """The person whose session the cookie is, and what the login gives. No person: a key's session, or none."""
    dependencies = request.app[DEPENDENCIES]
    token = session_token(request)
    if token is None or dependencies.settings.login is None:
        return None, []
    choices = await people.read_choices(dependencies.store, dependencies.settings.login, token_digest(token))
    return (None, []) if choices is None else choices


def _shown_choices(choices: list[WorkspaceChoice]) -> list[dict[str, Any]]:
    return [{"workspace": {"id": one.workspace_id, "name": one.workspace_name}, "role": one.role} for one in choices]


async def _log_out(request: web.Request) -> web.Response:
    """End the session. A person's browser is told where to log out of the identity provider as well."""
    check_own_origin(request)
    login = request.app[DEPENDENCIES].login
    token = session_token(request)
    continue_at = None
    if token is not None:
        was_person = (await _choices(request))[0] is not None
        await console_sessions.end_session(request.app[DEPENDENCIES].store, token)
        if was_person and login is not None:
            continue_at = await login.logout_url(f"{origin_of(request)}/console")
    answer = web.Response(status=204, headers=_NOT_STORED)
    if continue_at is not None:
        answer = web.json_response({"continue_at": continue_at}, headers=_NOT_STORED)
    set_session_cookie(request, answer, "", 0)
    return answer


def set_session_cookie(request: web.Request, answer: web.StreamResponse, token: str, max_age_s: int) -> None:
    """Give the browser a session's token, or take it away."""
    is_https = origin_of(request).startswith("https:")
    answer.set_cookie(
        CONSOLE_COOKIE, token, path="/", httponly=True, samesite="Strict", secure=is_https, max_age=max_age_s
    )


def _shown(session: ConsoleSession, visitor: Visitor, inference_url: str | None) -> dict[str, Any]:
    group = visitor.group
    caller = session.caller
    return {
        "kind": caller.kind.value,
        "prefix": caller.prefix,
        "person": None if caller.person is None else caller.person.name,
        "role": None if caller.effective_role is None else caller.effective_role.value,
        "may": sorted(caller.permissions),
        "roles_that_may": {permission.value: roles_with(permission) for permission in Permission},
        "name": session.key.name,
        "workspace": {"id": caller.workspace_id, "name": visitor.workspace, "prefixes": visitor.prefixes},
        "group": None if group is None else asdict(group),
        "may_manage": may_manage(caller.kind),
        "onboarded": caller.onboarded,
        "inference_url": inference_url,
        "expires_at": time_text(session.record.expires_at_ms),
    }


ROUTES = [
    web.post(PATH, _log_in),
    web.get(PATH, _get, allow_head=True),
    web.put(PATH, _choose),
    web.delete(PATH, _log_out),
]
