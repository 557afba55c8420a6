"""Signs requests as boto3 1.44 does. Standard library only: scripts in other environments use it too."""

import base64
import hashlib
import hmac
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Keys:
    """The `creds` of `blobs/credentials`, by their own names."""

    aws_access_key_id: str
    aws_secret_access_key: str
    aws_session_token: str
    endpoint_url: str
    region_name: str = "us-east-1"


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def crc32(body: bytes) -> str:
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


def authorization(keys: Keys, method: str, target: str, headers: Mapping[str, str], date: str) -> str:
    """The value of `Authorization` for these headers, all signed. `headers`: by lower-case name."""
    path, _, query = target.partition("?")
    pairs = sorted(pair if "=" in pair else f"{pair}=" for pair in query.split("&") if pair)
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join((method, path, "&".join(pairs), lines, names, headers["x-amz-content-sha256"]))
    scope = f"{date[:8]}/{keys.region_name}/s3/aws4_request"
    key = f"AWS4{keys.aws_secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{sha256(canonical.encode())}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"{keys.aws_access_key_id}/{scope}"
    return f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"


def signed_headers(keys: Keys, method: str, target: str, payload: str, more: Mapping[str, str]) -> dict[str, str]:
    """The headers of a request of now. `payload`: its digest, or what stands for it. `more`: others to sign."""
    date = more.get("x-amz-date") or f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    signed = {
        "host": urlsplit(keys.endpoint_url).netloc,
        "x-amz-date": date,
        "x-amz-security-token": keys.aws_session_token,
        "x-amz-content-sha256": payload,
    } | dict(more)
    return signed | {"Authorization": authorization(keys, method, target, signed, date)}
