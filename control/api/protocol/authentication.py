"""Authentication and authorization of the management API (docs/reference/management-api.md#authentication).

401: no credentials, or malformed ones. 403: the key is unknown, of the wrong kind, or its workspace is not onboarded.
An outage is never answered with either.
"""

import hmac

from aiohttp import web

from control.api.protocol.errors import ProblemError
from control.dependencies import Dependencies
from control.resources.keys import find_presented_keys
from control.resources.records import PresentedKey
from policy.credentials import KeyKind, credentials_in, may_manage

_GATEWAY = "/v1/gateway/"


CALLER = web.RequestKey("caller", PresentedKey)
"""Where a request keeps its caller, for the log."""


async def authenticate(request: web.Request, dependencies: Dependencies) -> PresentedKey:
    """The key that the request presents; 401 or 403 when there is none, or it is unknown."""
    keys = credentials_in(request.headers.getall("Authorization", ()), request.headers.getall("x-api-key", ()))
    if not keys:
        raise ProblemError(401, "UNAUTHORIZED", "Unauthorized")
    presented = await find_presented_keys(dependencies.store, keys)
    if len(presented) > 1:
        message = "Authorization and x-api-key hold two different API keys; send one"
        raise ProblemError(400, "AMBIGUOUS_CREDENTIAL", message)
    if not presented:
        raise ProblemError(403, "AUTHENTICATION_FAILED", "Authentication failed")
    request[CALLER] = presented[0]
    return presented[0]


def check_may_manage(caller: PresentedKey, path: str) -> None:
    """403 unless the key has management scope and, below /v1/gateway/, the workspace is onboarded."""
    if caller.kind is KeyKind.FEDERATED:
        message = "A federated gateway key is an inference credential; use a workspace key with management scope"
        raise ProblemError(403, "FEDERATED_KEY", message)
    if not may_manage(caller.kind):
        raise ProblemError(403, "MISSING_SCOPE", "This API key lacks management scope")
    if path.startswith(_GATEWAY) and not caller.onboarded:
        raise ProblemError(403, "NOT_ONBOARDED", "The workspace is not onboarded to the gateway")


def check_internal(request: web.Request, internal_token: str) -> None:
    """401 unless the request carries the token that control shares with its proxies."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    presented = token.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() != "bearer" or not hmac.compare_digest(presented, internal_token.encode()):
        raise ProblemError(401, "UNAUTHORIZED", "Unauthorized")
