"""Posts a webhook message to a customer's URL.

See docs/reference/management-api.md#egress-rules.
"""

import time
from collections.abc import Mapping

from control.edges.egress import Egress, EgressClient, Resolve
from control.records.webhooks import DeliveryAttempt
from policy.hosts import EgressRules, Reach, check_base_url
from runtime.http.checked_dialling import resolve_host

MAX_RETRY_AFTER_S = 86_400


class WebhookClient:
    """Posts messages. A receiver has `timeout_s` to answer. Only tests replace `resolve`."""

    def __init__(
        self, rules: EgressRules, timeout_s: float, ca_file: str | None = None, resolve: Resolve = resolve_host
    ) -> None:
        egress = Egress(rules, Reach.CUSTOMER, ca_file, resolve)
        self._client = EgressClient(egress, "Tollgate-Webhooks/1", check_base_url, timeout_s)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> DeliveryAttempt:
        """Make one attempt. Never raises; takes at most `timeout_s`."""
        started_s = time.monotonic()
        at_ms = time.time_ns() // 1_000_000
        posted = await self._client.post(url, headers, body)
        duration_ms = int((time.monotonic() - started_s) * 1000)
        retry_after_ms = _retry_after_s(posted.headers) * 1000
        return DeliveryAttempt(at_ms, duration_ms, posted.status, posted.error or None, retry_after_ms)

    async def close(self) -> None:
        await self._client.close()


def _retry_after_s(headers: Mapping[str, str]) -> int:
    after = headers.get("Retry-After", "")
    seconds = int(after) if after.isascii() and after.isdecimal() and len(after) < 9 else 0
    return min(seconds, MAX_RETRY_AFTER_S)
