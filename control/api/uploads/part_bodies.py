"""The body of a part on its way into the store: decoded, counted and compared with what its sender says of it.

See docs/reference/training.md#uploads.
"""

import asyncio
import base64
import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from aiohttp import StreamReader

from control.api.uploads.chunks import ChunkDecoder
from control.api.uploads.s3_errors import S3Error, invalid_request, not_implemented
from control.api.uploads.signatures import SignedRequest
from policy.training.artifacts import MAX_ARTIFACT_BYTES

UNSIGNED = "UNSIGNED-PAYLOAD"
UNSIGNED_WITH_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_CHUNKED = "aws-chunked"
_CHECKSUM = "x-amz-checksum-"
_NO_CHECKSUMS = ("x-amz-checksum-algorithm", "x-amz-checksum-type")
_PIECE_BYTES = 1024 * 1024
_DIGITS = re.compile("[0-9]{1,15}")
_SHA256 = re.compile("[0-9a-f]{64}")


class Checksum(Protocol):
    """A hash, as `hashlib` has them."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class Crc32:
    """The CRC-32 of zlib."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class BodyForm:
    """The sender's words on a body. `payload`: the value of `x-amz-content-sha256`."""

    size_bytes: int
    payload: str
    checksum: str | None
    """The name of the checksum's algorithm; it stands in a header or, if the body has one, in its trailer."""
    expected: str | None
    """The value in base64; None: the trailer has it."""
    md5: str | None

    @property
    def is_chunked(self) -> bool:
        return self.payload == UNSIGNED_WITH_TRAILER

    @classmethod
    def of(cls, request: SignedRequest) -> "BodyForm":
        """S3Error for a size or form that is not taken."""
        payload = request.header("x-amz-content-sha256") or ""
        if payload.startswith("STREAMING-") and payload != UNSIGNED_WITH_TRAILER:
            raise not_implemented(payload)
        if not (payload in (UNSIGNED, UNSIGNED_WITH_TRAILER) or _SHA256.fullmatch(payload)):
            raise invalid_request("x-amz-content-sha256 must be the SHA-256 of the body, or UNSIGNED-PAYLOAD")
        is_chunked = payload == UNSIGNED_WITH_TRAILER
        if (request.header("content-encoding") == _CHUNKED) != is_chunked:
            raise invalid_request(f"Content-Encoding must be {_CHUNKED} with {UNSIGNED_WITH_TRAILER}, and absent else")
        size_bytes = _size(request.header("x-amz-decoded-content-length" if is_chunked else "content-length"))
        checksum, expected = _checksum(request, is_chunked)
        return cls(size_bytes, payload, checksum, expected, request.header("content-md5"))


class PartBody:
    """Yields the content of a body to the thread that writes it; satisfies `control.edges.checkpoint_store.Pieces`.

    Raises S3Error when the content is not as its sender says, before the last piece counts.
    """

    def __init__(self, stream: StreamReader, form: BodyForm) -> None:
        self.piece_count = 0
        self.size_bytes = 0
        self._stream = stream
        self._form = form
        self._loop = asyncio.get_running_loop()
        self._is_stopped = False
        self._reading: Future[bytes] | None = None
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._checksum: Checksum | None = None if form.checksum is None else _ALGORITHMS[form.checksum]()

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def etag(self) -> str:
        """Return the MD5 of what was taken, in hexadecimal, as S3's clients expect it."""
        return self._md5.hexdigest()

    def stop(self) -> None:
        self._is_stopped = True
        if self._reading is not None:
            self._reading.cancel()

    def __iter__(self) -> Iterator[bytes]:
        decoder = ChunkDecoder() if self._form.is_chunked else None
        while raw := self._next():
            for piece in (raw,) if decoder is None else decoder.feed(raw):
                self._count(piece)
                yield piece
        if decoder is not None and not decoder.has_ended:
            raise _incomplete()
        self._check({} if decoder is None else decoder.trailers)

    def _next(self) -> bytes:
        """Read in the event loop, where the body arrives."""
        self.piece_count += 1
        if self._is_stopped:
            raise ConnectionAbortedError
        self._reading = asyncio.run_coroutine_threadsafe(_read(self._stream), self._loop)
        return self._reading.result()

    def _count(self, piece: bytes) -> None:
        self.size_bytes += len(piece)
        if self.size_bytes > self._form.size_bytes:
            raise _incomplete()
        self._sha256.update(piece)
        self._md5.update(piece)
        if self._checksum is not None:
            self._checksum.update(piece)

    def _check(self, trailers: dict[str, str]) -> None:
        form = self._form
        if self.size_bytes != form.size_bytes:
            raise _incomplete()
        if _SHA256.fullmatch(form.payload) and form.payload != self.sha256:
            raise S3Error(400, "XAmzContentSHA256Mismatch", "x-amz-content-sha256 is not the SHA-256 of the body")
        expected = form.expected or trailers.get(f"{_CHECKSUM}{form.checksum}")
        for checksum, text in ((self._md5, form.md5), (self._checksum, expected or "")):
            if checksum is None or text is None:
                continue
            if base64.b64encode(checksum.digest()).decode() != text:
                raise S3Error(400, "BadDigest", "The checksum is not that of the body that arrived; send it again")


async def _read(stream: StreamReader) -> bytes:
    """Return up to a mebibyte, or what there is at the end; empty behind it."""
    pieces = list[bytes]()
    size_bytes = 0
    while size_bytes < _PIECE_BYTES and (piece := await stream.readany()):
        pieces.append(piece)
        size_bytes += len(piece)
    return b"".join(pieces)


def _size(text: str | None) -> int:
    if text is None:
        raise S3Error(411, "MissingContentLength", "Content-Length is missing, or x-amz-decoded-content-length")
    if not _DIGITS.fullmatch(text):
        raise invalid_request("The length of the body must be a whole number")
    if int(text) > MAX_ARTIFACT_BYTES:
        raise S3Error(400, "EntityTooLarge", "An upload has at most 5 GiB")
    return int(text)


def _checksum(request: SignedRequest, is_chunked: bool) -> tuple[str | None, str | None]:
    """The algorithm, and the value unless it follows the body."""
    trailer = (request.header("x-amz-trailer") or "").lower()
    if trailer and not (is_chunked and trailer.startswith(_CHECKSUM)):
        raise not_implemented(f"x-amz-trailer {trailer}")
    names = _names(name for name, _ in request.headers)
    if len(names) + bool(trailer) > 1:
        raise invalid_request("Send one checksum")
    name = trailer or (names[0] if names else "")
    algorithm = name.removeprefix(_CHECKSUM)
    if name and algorithm not in _ALGORITHMS:
        raise not_implemented(name)
    return (algorithm, None if trailer else request.header(name)) if name else (None, None)


def _names(names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(_CHECKSUM) and name not in _NO_CHECKSUMS})


def _incomplete() -> S3Error:
    return S3Error(400, "IncompleteBody", "The body does not have the number of bytes that its header says")


_ALGORITHMS: Mapping[str, Callable[[], Checksum]] = {
    "crc32": Crc32,
    "sha1": partial(hashlib.sha1, usedforsecurity=False),
    "sha256": hashlib.sha256,
}
