"""A client of Tollgate's management API: `Tollgate`, and `AsyncTollgate` for programs on asyncio."""

from tollgate_client.failures import TollgateError
from tollgate_client.gateway import AsyncTollgate, Tollgate
from tollgate_client.pages import iterate, iterate_async
from tollgate_client.retries import Retries
from tollgate_client.transport import with_headers, with_headers_async
from tollgate_client.webhooks import WebhookVerificationError, verify_webhook

__all__ = [
    "AsyncTollgate",
    "Retries",
    "Tollgate",
    "TollgateError",
    "WebhookVerificationError",
    "iterate",
    "iterate_async",
    "verify_webhook",
    "with_headers",
    "with_headers_async",
]
