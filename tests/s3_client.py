"""A client of S3 in the forms that boto3 1.44 sends, signed by hand: tests need no boto3."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from aiohttp import ClientSession
from yarl import URL

from tests.s3_signing import Keys, crc32, sha256, signed_headers

__all__ = ["S3", "Answered", "Keys", "completion", "crc32", "sha256"]


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
        dated = {"x-amz-date": changes["date"]} if "date" in changes else {}
        headers = signed_headers(keys, method, target, sha256(body), dated | changes.get("headers", {}))
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
