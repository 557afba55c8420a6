"""Downloads one file into an open one. A download that breaks off goes on where it was, if the file is still the same.

A file is whole only with the size, and the SHA-256, that the source named.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from http import HTTPStatus

import aiohttp

from runtime.daemon_threads import in_daemon_thread
from runtime.http.checked_dialling import describe
from trainer.backend import WeightsError
from trainer.edges.checkpoints.writing import write_all
from trainer.edges.weights.downloads import Downloads
from trainer.edges.weights.remote_files import RemoteFile, SourceAwayError

PIECE_BYTES = 1024 * 1024
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")


class Budget:
    """The bytes that a job's weights may still have."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0

    def check(self, size_bytes: int) -> None:
        """WeightsError if so many more are too many."""
        if self._bytes + size_bytes > self._max_bytes:
            bound = f"{self._max_bytes / 1024**3:g} GiB"
            raise WeightsError(
                f"the job's weights would have more than {bound}, which TOLLGATE_WEIGHTS_MAX_SIZE allows; leave files"
                " out by allow_patterns or ignore_patterns, or ask the operator"
            )

    def spend(self, size_bytes: int) -> None:
        """WeightsError if that is too much. A negative number gives bytes back."""
        self.check(size_bytes)
        self._bytes += size_bytes


class FileDownload:
    """A file and how far it is. `run` may be called again after a SourceAwayError."""

    def __init__(self, downloads: Downloads, file: RemoteFile, descriptor: int, budget: Budget) -> None:
        self._downloads = downloads
        self._file = file
        self._descriptor = descriptor
        self._budget = budget
        self._etag: str | None = None
        self._whole_bytes = file.size_bytes
        self._digest = hashlib.sha256()
        self.size_bytes = 0
        """The bytes that are there."""

    async def run(self, on_written: Callable[[int], Awaitable[None]]) -> None:
        """Download until the file is whole; tell each time how many bytes were written. SourceAwayError; WeightsError.

        A negative number: that many were lost, as it begins again.
        """
        headers = {}
        if self.size_bytes and self._etag is not None:
            headers = {"Range": f"bytes={self.size_bytes}-", "If-Range": self._etag}
        elif self.size_bytes:
            await on_written(await self._begin_again())
        async with self._downloads.open(self._file.request, headers) as answer:
            if self.size_bytes and not self._goes_on(answer):
                await on_written(await self._begin_again())
            self._note(answer)
            async for piece in _pieces(answer):
                self._budget.spend(len(piece))
                await _to_the_end(partial(self._write, piece))
                await on_written(len(piece))
        if self._whole_bytes is not None and self.size_bytes != self._whole_bytes:
            raise SourceAwayError("the connection broke off")
        if self._file.sha256 is not None and self._digest.hexdigest() != self._file.sha256:
            raise WeightsError("a file has another content than the source's list says (SHA-256)")

    def _goes_on(self, answer: aiohttp.ClientResponse) -> bool:
        """Return whether the answer begins where the file ends. SourceAwayError if it begins elsewhere."""
        if answer.status == HTTPStatus.OK:
            return False
        match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != self.size_bytes or int(match[3]) != self._whole_bytes:
            self._etag = None
            raise SourceAwayError("the source answered another part of a file than was asked for")
        return True

    def _note(self, answer: aiohttp.ClientResponse) -> None:
        """Note how long the file is, and its name for this content. WeightsError."""
        etag = answer.headers.get("ETag", "")
        self._etag = etag if etag.startswith('"') else None
        if answer.status == HTTPStatus.PARTIAL_CONTENT:
            if not self.size_bytes:
                raise WeightsError("the source answered a part of a file that was asked for whole")
            return
        length = answer.content_length
        if length is None:
            self._etag = None  # where it breaks off is not known
            if "chunked" not in answer.headers.get("Transfer-Encoding", "") and self._file.size_bytes is None:
                raise WeightsError("the source does not say how long the file is")
        elif self._file.size_bytes is None:
            self._whole_bytes = length
            self._budget.check(length)
        elif length != self._whole_bytes:
            raise WeightsError("a file has another size than the source's list says")

    async def _begin_again(self) -> int:
        lost_bytes = self.size_bytes
        await _to_the_end(self._empty)
        self._budget.spend(-lost_bytes)
        return -lost_bytes

    def _empty(self) -> None:
        try:
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
        except OSError as error:
            raise WeightsError(f"it cannot be written ({error.strerror})") from None
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def _write(self, piece: bytes) -> None:
        try:
            write_all(self._descriptor, piece)
        except OSError as error:
            raise WeightsError(f"it cannot be written ({error.strerror})") from None
        self._digest.update(piece)
        self.size_bytes += len(piece)


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The content in pieces that are worth a thread."""
    parts = list[bytes]()
    size_bytes = 0
    try:
        async for part in answer.content.iter_any():
            parts.append(part)
            size_bytes += len(part)
            if size_bytes >= PIECE_BYTES:
                yield b"".join(parts)
                parts.clear()
                size_bytes = 0
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        if parts:
            yield b"".join(parts)
        raise SourceAwayError(describe(error)) from None
    if parts:
        yield b"".join(parts)


async def _to_the_end(work: Callable[[], None]) -> None:
    """Run it in a thread, and wait for its end even if cancelled: it uses a descriptor, which is closed afterwards."""
    running = asyncio.ensure_future(in_daemon_thread(work))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise
