"""Fetches control's snapshot, all rows since a revision, in pages: `GET /internal/v1/snapshot`.

Used by the supervisor only. Each page ends as a decoded `SnapshotPage` or a `ControlUnreachableError`. Must not apply
anything; its errors never carry the token.
"""

import aiohttp
import orjson

from policy.limits.kinds import KINDS
from policy.snapshot import SnapshotPage
from policy.spend.levels import POLICY_LEVEL
from proxy.errors import ControlUnreachableError
from proxy.records.supervisor.policy_replica import ReplicaVersion
from runtime.http.control_session import ControlSession
from runtime.tls.pinned import PeerTls

PATH = "/internal/v1/snapshot"
PAGE_ROWS = 5000
_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=2, sock_read=10)


class ControlFeed:
    """A client of one control plane."""

    def __init__(self, control_url: str, internal_token: str, tls: PeerTls = True) -> None:
        self._url = control_url + PATH
        self._session = ControlSession(internal_token, _TIMEOUT, tls)

    async def page(self, since: ReplicaVersion, after: str | None) -> SnapshotPage:
        """One page of the changes since `since`; `after` is the `next` of the page before."""
        query = {"epoch": since.epoch, "since": str(since.revision), "nonce": since.nonce, "limit": str(PAGE_ROWS)}
        query["limit_kinds"] = str(len(KINDS))
        query["spend_limits"] = str(POLICY_LEVEL)
        if after is not None:
            query["after"] = after
        try:
            async with self._session.request("GET", self._url, params=query) as answer:
                body = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ControlUnreachableError(f"control at {self._url}: {type(error).__name__}") from None
        return _decoded(answer.status, body)

    async def close(self) -> None:
        await self._session.close()


def _decoded(status: int, body: bytes) -> SnapshotPage:
    if status in (401, 403):
        raise ControlUnreachableError(
            f"control refused TOLLGATE_INTERNAL_TOKEN ({status}); set the same token on control and proxy"
        )
    if status != 200:
        raise ControlUnreachableError(f"control answered {status} to a request for policy")
    try:
        return SnapshotPage.from_wire(orjson.loads(body))
    except (ValueError, KeyError, TypeError) as error:
        raise ControlUnreachableError(f"control's answer is not a page of policy: {type(error).__name__}") from None
