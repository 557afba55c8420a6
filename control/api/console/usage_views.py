"""Answers to the usage page of one group: for whoever logged in with a key of it, or has a link to it.

All of it together has one request limit, and turns that are not the workspace's own.

See docs/reference/console.md#usage-page.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from control.api.console.console_sessions import session_of
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.errors import ProblemError
from control.errors import UsageLinkOverError
from control.records.console import NamedGroup
from control.resources.console.usage_links import UsageLink, group_of_link
from control.resources.console.visitors import read_visitor
from policy.credentials import KeyKind
from runtime.http.server import keep

NOT_STORED = {"Cache-Control": "no-store"}


@dataclass(frozen=True, slots=True)
class UsageView:
    """The one group that a viewer sees. `prefix`: of the key that logged in; None for who has a link."""

    workspace_id: str
    group: NamedGroup
    prefix: str | None = None


def usage_routes(name: str, answer: Callable[[web.Request, UsageView], Awaitable[web.Response]]) -> list[web.RouteDef]:
    """The routes of one thing that the page reads: by session, and by link."""
    return [
        web.get(f"/console/usage/{name}", _within_limits(_viewed_by_session, answer)),
        web.get(f"/console/embed/{{token}}/{name}", _within_limits(_viewed_by_link, answer)),
    ]


def session_handler(answer: Callable[[web.Request, UsageView], Awaitable[web.Response]]) -> Handler:
    """A handler that whoever has a link never reaches."""
    return _within_limits(_viewed_by_session, answer)


def link_of(request: web.Request) -> UsageLink | None:
    """The link whose token is in the address, expired or not."""
    return request.app[DEPENDENCIES].usage_links.open(request.match_info["token"])


def _within_limits(
    view_of: Callable[[web.Request], Awaitable[UsageView]],
    answer: Callable[[web.Request, UsageView], Awaitable[web.Response]],
) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        view = await view_of(request)
        dependencies = request.app[DEPENDENCIES]
        await dependencies.throttle.check_usage_page(view.group.id)
        # Turns of their own: customers who look at their pages must not delay the workspace's own requests.
        async with dependencies.turns.of(f"{view.workspace_id} usage pages"):
            return await answer(request, view)

    return handle


async def _viewed_by_session(request: web.Request) -> UsageView:
    session = await session_of(request)
    if session.caller.kind is not KeyKind.FEDERATED:
        raise ProblemError(403, "MISSING_SCOPE", "Only the key of a group has a usage page; use the management API")
    if not session.caller.onboarded:
        raise ProblemError(403, "NOT_ONBOARDED", "The workspace is not onboarded to the gateway")
    visitor = await read_visitor(request.app[DEPENDENCIES].store, session)
    if visitor.group is None:  # deleted in this moment, and the key with it
        raise ProblemError(401, "UNAUTHORIZED", "Unauthorized")
    return UsageView(session.caller.workspace_id, visitor.group, session.caller.prefix)


async def _viewed_by_link(request: web.Request) -> UsageView:
    link = link_of(request)
    group = None if link is None else await group_of_link(request.app[DEPENDENCIES].store, link)
    if link is None or group is None:
        raise UsageLinkOverError
    keep(request, link.workspace_id)
    return UsageView(link.workspace_id, group)
