"""Verifies messages that Tollgate posts, by Standard Webhooks (standardwebhooks.com): HMAC-SHA256 and a time."""

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

_SECRET_PREFIX = "whsec_"  # noqa: S105 (a prefix, no secret)
_VERSION = "v1"
TOLERANCE_S = 300.0


class WebhookVerificationError(Exception):
    """The message is not one that Tollgate signed with this secret just now. Answer 400, and use nothing of it."""


def verify_webhook(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance_s: float = TOLERANCE_S,
    now_s: float | None = None,
) -> Any:
    """Return the parsed message. Raises WebhookVerificationError.

    `body`: the bytes as they were received. While the secret is rotated a message has a signature by each of both: one
    that fits is enough. `now_s`: the receiver's clock, if not this machine's.
    """
    fields = {name.lower(): value for name, value in headers.items()}
    try:
        id = fields["webhook-id"]
        timestamp = fields["webhook-timestamp"]
        signatures = fields["webhook-signature"]
    except KeyError as missing:
        raise WebhookVerificationError(f"the header {missing.args[0]} is missing") from None
    now_s = time.time() if now_s is None else now_s
    if not (timestamp.isascii() and timestamp.isdigit()) or not abs(now_s - int(timestamp)) <= tolerance_s:
        raise WebhookVerificationError(f"webhook-timestamp is not within {tolerance_s:g} s of this clock")
    digest = hmac.new(_key(secret), f"{id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    expected = f"{_VERSION},{base64.b64encode(digest).decode()}".encode()
    matches = [hmac.compare_digest(expected, one.encode()) for one in signatures.split(" ")]
    if not any(matches):
        raise WebhookVerificationError("no signature of webhook-signature fits the body and this secret")
    return json.loads(body)


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:  # anybody can sign with an empty key
        raise ValueError("secret must be the webhook's secret as Tollgate returned it: whsec_ and base64")
    return key
