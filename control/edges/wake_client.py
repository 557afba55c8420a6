"""Posts to a deployment's wake hook. Addresses obey the rules of replicas.

See docs/reference/management-api.md#egress-rules.
"""

from control.edges.egress import Egress, EgressClient, Resolve
from policy.hosts import EgressRules, Reach, check_wake_url
from runtime.http.checked_dialling import resolve_host

TIMEOUT_S = 10.0
_HEADERS = {"Content-Type": "application/json"}


class WakeClient:
    """Posts to hooks. Only tests replace `resolve` and `timeout_s`."""

    def __init__(
        self,
        rules: EgressRules,
        ca_file: str | None = None,
        resolve: Resolve = resolve_host,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        # Calls are rare: a kept connection would be found closed, and a POST is not sent twice.
        egress = Egress(rules, Reach.REPLICA, ca_file, resolve, reuse=False)
        self._client = EgressClient(egress, "Tollgate-Wake/1", check_wake_url, timeout_s)

    async def post(self, url: str, body: bytes) -> str:
        """Send a POST; returns what went wrong, without URL and address; "" after a 2xx. Never raises."""
        return (await self._client.post(url, _HEADERS, body)).error

    async def close(self) -> None:
        await self._client.close()
