"""Who is calling the management API, and may they (docs/reference/management-api.md#authentication).

401 for no or malformed credentials; 403 for a key that is unknown, of the wrong kind, or of a workspace that is not
onboarded; never any of these because of an outage. Keys and digests stay in here.
"""

import hmac
from dataclasses import dataclass

from aiohttp import web

from control.api.protocol.errors import ProblemError
from control.edges.sql.key_rows import find_by_digest
from control.edges.sql.store import Store
from policy.credentials import KeyKind, credentials_in, digest_of, may_manage

_GATEWAY = "/v1/gateway/"


@dataclass(frozen=True, slots=True)
class Caller:
    """The workspace on whose behalf a request acts, and the key that says so."""

    workspace_id: str
    key_prefix: str
    kind: KeyKind
    onboarded: bool


CALLER = web.RequestKey("caller", Caller)
"""Where a request keeps its caller, for the log."""


async def authenticate(request: web.Request, store: Store) -> Caller:
    """The caller; 401 or 403 when there is none."""
    keys = credentials_in(request.headers.getall("Authorization", ()), request.headers.getall("x-api-key", ()))
    if not keys:
        raise ProblemError(401, "UNAUTHORIZED", "Unauthorized")
    async with store.read() as conn:
        rows = [await find_by_digest(conn, digest_of(key)) for key in keys]
    ours = [row for row in rows if row is not None]
    if len(ours) > 1:
        message = "Authorization and x-api-key hold two different API keys; send one"
        raise ProblemError(400, "AMBIGUOUS_CREDENTIAL", message)
    if not ours:
        raise ProblemError(403, "AUTHENTICATION_FAILED", "Authentication failed")
    found = ours[0]
    caller = Caller(found.workspace_id, found.prefix, KeyKind(found.kind), found.onboarded)
    request[CALLER] = caller
    return caller


def check_may_manage(caller: Caller, path: str) -> None:
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
