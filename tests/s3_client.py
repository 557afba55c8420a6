"""A client of S3 in the forms that boto3 1.44 sends, signed by hand: tests need no boto3."""

import base64
import hashlib
import hmac
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

from aiohttp import ClientSession
from yarl import URL


@dataclass(frozen=True)
class Keys:
    """The `creds` of `blobs/credentials`, by their own names."""

    aws_access_key_id: str
    aws_secret_access_key: str
    aws_session_token: str
    endpoint_url: str
    region_name: str = "us-east-1"


@dataclass(frozen=True)
class Answered:
    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def code(self) -> str:
        """The code of an error."""
        return self.member("Code")

    def member(self, name: str) -> str:
        return self.text.partition(f"<{name}>")[2].partition("</")[0]


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


class S3:
    """Calls `endpoint_url` for one bucket and key."""

    def __init__(self, session: ClientSession, credentials: Mapping[str, Any]) -> None:
        self.session = session
        self.keys = Keys(**credentials["creds"])
        self.path = f"/{credentials['s3_bucket']}/{credentials['s3_key']}"

    async def call(self, method: str, query: str = "", body: bytes = b"", **changes: Any) -> Answered:
        """One request. `changes`: `headers` that are signed too, `keys`, `path`, `date`, and `unsigned` headers."""
        keys: Keys = changes.get("keys", self.keys)
        target = changes.get("path", self.path) + (f"?{query}" if query else "")
        date = changes.get("date") or f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        signed = {
            "host": urlsplit(keys.endpoint_url).netloc,
            "x-amz-date": date,
            "x-amz-security-token": keys.aws_session_token,
            "x-amz-content-sha256": sha256(body),
        } | changes.get("headers", {})
        headers = signed | {"Authorization": authorization(keys, method, target, signed, date)}
        headers |= changes.get("unsigned", {})
        url = URL(keys.endpoint_url + target, encoded=True)
        async with self.session.request(
            method, url, data=BytesIO(body), headers=headers, expect100=bool(body)
        ) as answer:
            return Answered(answer.status, await answer.text(), answer.headers.copy())

    async def put(self, body: bytes, query: str = "", **changes: Any) -> Answered:
        """A PUT with the checksum that boto3 adds on plain HTTP."""
        checksum = {"x-amz-checksum-crc32": crc32(body), "x-amz-sdk-checksum-algorithm": "CRC32"}
        changes["headers"] = checksum | changes.get("headers", {})
        return await self.call("PUT", query, body, **changes)

    async def put_chunked(self, body: bytes, trailer: str | None = None) -> Answered:
        """A PUT as boto3 sends it on HTTPS: the body in chunks, the checksum behind them."""
        pieces = [body[at : at + 65536] for at in range(0, len(body), 65536)]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        framed += f"0\r\nx-amz-checksum-crc32:{trailer or crc32(body)}\r\n\r\n".encode()
        headers = {
            "content-encoding": "aws-chunked",
            "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
            "x-amz-decoded-content-length": str(len(body)),
            "x-amz-trailer": "x-amz-checksum-crc32",
        }
        return await self.call("PUT", "", framed, headers=headers)

    async def multipart(self, *parts: bytes) -> Answered:
        """All of a multipart upload."""
        upload_id = (await self.call("POST", "uploads")).member("UploadId")
        etags = [
            (await self.put(part, f"uploadId={upload_id}&partNumber={number}")).headers["ETag"]
            for number, part in enumerate(parts, 1)
        ]
        return await self.call("POST", f"uploadId={upload_id}", completion(*etags))


def completion(*etags: str) -> bytes:
    """The body of CompleteMultipartUpload."""
    parts = "".join(
        f"<Part><ETag>{etag}</ETag><PartNumber>{number}</PartNumber></Part>" for number, etag in enumerate(etags, 1)
    )
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<CompleteMultipartUpload xmlns="{space}">{parts}</CompleteMultipartUpload>'.encode()
