"""Gets the documents that identity providers publish: their discovery document, and their keys.

See docs/reference/management-api.md#egress-rules.
"""

from control.edges.egress import Egress, EgressClient, Resolve
from control.records.identity.documents import Document
from policy.hosts import EgressRules, Reach, check_download_url
from runtime.http.checked_dialling import resolve_host

TIMEOUT_S = 5.0
MAX_BYTES = 262_144
"""The largest document. Providers with many keys answer some 10 kB."""
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}


class IssuerClient:
    """Gets documents. Only tests replace `resolve` and `timeout_s`."""

    def __init__(
        self,
        rules: EgressRules,
        ca_file: str | None = None,
        resolve: Resolve = resolve_host,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        # Documents are got now and then: a kept connection would be found closed.
        egress = Egress(rules, Reach.CUSTOMER, ca_file, resolve, reuse=False)
        self._client = EgressClient(egress, "Tollgate-Keys/1", _check, timeout_s)

    async def get(self, url: str) -> Document:
        """Get a document; its error is for customers. Never raises."""
        return await self._client.get(url, _HEADERS, MAX_BYTES)

    async def close(self) -> None:
        await self._client.close()


def _check(url: str, rules: EgressRules) -> object:
    return check_download_url(url, rules, "url")
