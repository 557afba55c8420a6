"""Posts a webhook message to a customer's URL.

See docs/reference/management-api.md#egress-rules.
"""

import asyncio
import time
from collections.abc import Mapping

import aiohttp

from control.edges.egress import Egress, EgressClient, Resolve, describe, resolve_host
from control.resources.webhook_messages import Attempt
from policy.hosts import EgressRules, HostRuleError, Reach, check_base_url

MAX_RETRY_AFTER_S = 86_400


class WebhookClient:
    """Posts messages. A receiver has `timeout_s` to answer. Only tests replace `resolve`."""

    def __init__(
        self, rules: EgressRules, timeout_s: float, ca_file: str | None = None, resolve: Resolve = resolve_host
    ) -> None:
        self._rules = rules
        self._timeout_s = timeout_s
        self._client = EgressClient(Egress(rules, Reach.CUSTOMER, ca_file, resolve), "Tollgate-Webhooks/1")

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Attempt:
        """Make one attempt. Never raises; takes at most `timeout_s`."""
        started_s, at_ms = time.monotonic(), time.time_ns() // 1_000_000
        status, error, retry_after_s = None, None, 0
        try:
            check_base_url(url, self._rules)
            async with asyncio.timeout(self._timeout_s):
                status, answered = await self._client.post(url, headers, body)
            retry_after_s = _retry_after_s(answered)
        except HostRuleError:
            error = "the URL may not be called"
        except TimeoutError:
            error = "no answer in time"
        except (aiohttp.ClientError, OSError) as failure:
            error = describe(failure)
        duration_ms = int((time.monotonic() - started_s) * 1000)
        if status is not None and not 200 <= status < 300:
            error = f"answered {status}"
        return Attempt(at_ms, duration_ms, status, error, retry_after_s * 1000)

    async def close(self) -> None:
        await self._client.close()


def _retry_after_s(headers: Mapping[str, str]) -> int:
    after = headers.get("Retry-After", "")
    seconds = int(after) if after.isascii() and after.isdecimal() and len(after) < 9 else 0
    return min(seconds, MAX_RETRY_AFTER_S)
