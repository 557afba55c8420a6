"""Authentication and authorization of the management API (docs/reference/management-api.md#authentication).

401: no credentials, or malformed ones. 403: the key is unknown, of the wrong kind, or its workspace is not onboarded.
An outage is never answered with either. A browser that logged in to the console presents a cookie instead of a key.
"""

from aiohttp import web

from control.api.protocol.errors import ProblemError
from control.api.protocol.origins import is_from_own_page
from control.dependencies import Dependencies
from control.records.policy import PresentedKey
from control.resources.console.console_sessions import ConsoleSession, find_session, is_token
from control.resources.keys import find_presented_keys
from policy.credentials import KeyKind, credentials_in, equals_token, may_manage
from policy.keys.permissions import Permission, roles_text
from runtime.http.server import keep

CONSOLE_COOKIE = "tollgate_console"
_GATEWAY = "/v1/gateway/"
_SAFE_METHODS = ("GET", "HEAD")

CALLER = web.RequestKey("caller", PresentedKey)
"""The key under which a request keeps its caller, for the log."""


async def authenticate(request: web.Request, dependencies: Dependencies) -> PresentedKey:
    """The key that the request presents; 401 or 403 when there is none, or it is unknown."""
    keys = presented_credentials(request)
    if not keys:
        raise ProblemError(401, "UNAUTHORIZED", "Unauthorized")
    presented = await find_presented_keys(dependencies.store, keys)
    if len(presented) > 1:
        message = "Authorization and x-api-key hold two different API keys; send one"
        raise ProblemError(400, "AMBIGUOUS_CREDENTIAL", message)
    if not presented:
        raise ProblemError(403, "AUTHENTICATION_FAILED", "Authentication failed")
    _note_caller(request, presented[0])
    return presented[0]


def presented_credentials(request: web.Request) -> tuple[str, ...]:
    """The distinct credentials of the request's header fields."""
    return credentials_in(request.headers.getall("Authorization", ()), request.headers.getall("x-api-key", ()))


async def authenticate_for_api(request: web.Request, dependencies: Dependencies) -> PresentedKey:
    """The key that the request presents or, if no header presents any, the one of the cookie's session."""
    session = None if _presents_key(request) else await session_of(request, dependencies)
    if session is None:
        return await authenticate(request, dependencies)
    check_own_origin(request)
    return session.caller


async def session_of(request: web.Request, dependencies: Dependencies) -> ConsoleSession | None:
    """The session of the console's cookie; None without a valid one."""
    token = session_token(request)
    session = None if token is None else await find_session(dependencies.store, token, dependencies.settings.login)
    if session is not None:
        _note_caller(request, session.caller)
    return session


def _note_caller(request: web.Request, caller: PresentedKey) -> None:
    """Raises `NoPlaceError` if the workspace has its share of connections."""
    request[CALLER] = caller
    keep(request, caller.workspace_id)


def session_token(request: web.Request) -> str | None:
    """The token in the cookie. None if several are sent: another page of this host must not choose the session."""
    valid = [token for token in cookie_values(request, CONSOLE_COOKIE) if is_token(token)]
    return valid[0] if len(valid) == 1 else None


def cookie_values(request: web.Request, cookie: str) -> set[str]:
    """The distinct values that the request sends for a cookie."""
    pairs = (pair.partition("=") for header in request.headers.getall("Cookie", ()) for pair in header.split(";"))
    return {value.strip() for name, _, value in pairs if name.strip() == cookie}


def check_own_origin(request: web.Request) -> None:
    """Refuse a write that no page of ours sent with 403. A browser adds the cookie to what other pages send, too."""
    if request.method not in _SAFE_METHODS and not is_from_own_page(request):
        raise ProblemError(403, "FOREIGN_ORIGIN", "With the console's cookie, only a page of this host may change this")


def _presents_key(request: web.Request) -> bool:
    """Return whether a header presents a key, valid or not. `Basic` does not: it may be meant for a proxy before us."""
    keys = request.headers.getall("x-api-key", ())
    bearers = request.headers.getall("Authorization", ())
    return any(key.strip() for key in keys) or any(credentials_in((value,)) for value in bearers)


def check_may_manage(caller: PresentedKey, path: str) -> None:
    """Refuse with 403 unless the key has management scope and, below /v1/gateway/, the workspace is onboarded."""
    if caller.kind is KeyKind.FEDERATED:
        message = "A federated gateway key is an inference credential; use a workspace key with management scope"
        raise ProblemError(403, "FEDERATED_KEY", message)
    if not may_manage(caller.kind):
        raise ProblemError(403, "MISSING_SCOPE", "This API key lacks management scope")
    if path.startswith(_GATEWAY) and not caller.onboarded:
        raise ProblemError(403, "NOT_ONBOARDED", "The workspace is not onboarded to the gateway")


def check_permission(caller: PresentedKey, permission: Permission) -> None:
    """Refuse with 403 unless the caller has the permission, whatever ids the path names."""
    if permission not in caller.permissions:
        role = caller.effective_role
        has = f"has the role {role.value}" if role is not None else f"is of type {caller.kind.value}"
        whose = f"this API key {has}" if caller.person is None else f"{caller.person.name} {has}"
        raise ProblemError(403, "MISSING_ROLE", f"This needs the role {roles_text(permission)}; {whose}")


def check_internal(request: web.Request, internal_token: str) -> None:
    """Refuse with 401 unless the request carries the token that control shares with its proxies."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not equals_token(token.strip(), internal_token):
        raise ProblemError(401, "UNAUTHORIZED", "Unauthorized")
    keep(request, None)
