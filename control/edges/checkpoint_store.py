"""Reads checkpoint files from the checkpoint store for downloads, outside the event loop, in pieces of bounded size."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager

from control.errors import CheckpointFileNotFoundError, CheckpointStoreUnavailableError
from policy.training.store_keys import store_key
from runtime.daemon_threads import in_daemon_thread, start_daemon_thread
from runtime.log_lines import OutageLog, cause_of
from runtime.object_store import NotInStoreError, ObjectStore, StoreError

READ_TIMEOUT_S = 60.0
"""The time for one piece. A store that hangs must not keep its downloads open for ever."""
log = logging.getLogger(__name__)


class CheckpointStore:
    """The store at an fsspec URL. None: control does not know one."""

    def __init__(self, url: str | None) -> None:
        self._store = ObjectStore(url) if url else None
        self._outage = OutageLog(log)

    @asynccontextmanager
    async def reading(self, location: str, path: str, size_bytes: int, start: int) -> "AsyncIterator[Download]":
        """A file of the checkpoint at `location`, from byte `start` on. Its first piece is there already.

        CheckpointFileNotFoundError if the store does not have it; CheckpointStoreUnavailableError.
        """
        if self._store is None:
            raise CheckpointStoreUnavailableError("TOLLGATE_CHECKPOINT_STORE is not set for control.")
        reader = _Reader(self._store, store_key(location, path), size_bytes, start)
        try:
            yield Download(reader, await self._first(reader))
        finally:
            start_daemon_thread(reader.close)

    async def _first(self, reader: "_Reader") -> bytes:
        try:
            piece = await _next(reader)
        except NotInStoreError:
            raise CheckpointFileNotFoundError from None
        except StoreError as error:
            self._outage.begins(
                f"The checkpoint store {self._store} cannot be read ({cause_of(error)}); downloads are answered 503."
                " Check TOLLGATE_CHECKPOINT_STORE and its credentials."
            )
            raise CheckpointStoreUnavailableError(str(error)) from None
        self._outage.ends("The checkpoint store can be read again.")
        return piece


class Download:
    """The pieces of one file."""

    def __init__(self, reader: "_Reader", first: bytes) -> None:
        self._reader = reader
        self._first = first

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the pieces. Raises StoreError when the store fails in the middle."""
        piece = self._first
        while piece:
            yield piece
            piece = await _next(self._reader)


class _Reader:
    """Reads in whichever thread asks; one at a time."""

    def __init__(self, store: ObjectStore, key: str, size_bytes: int, start: int) -> None:
        self._turn = threading.Lock()
        self._pieces = self._read(store, key, size_bytes, start)

    def next(self) -> bytes:
        """Read the next piece; empty at the end."""
        with self._turn:
            return next(self._pieces, b"")

    def close(self) -> None:
        with self._turn:
            self._pieces.close()

    @staticmethod
    def _read(store: ObjectStore, key: str, size_bytes: int, start: int) -> Generator[bytes, None, None]:
        present_bytes = store.size(key)
        if present_bytes != size_bytes:
            raise NotInStoreError("it has another size" if present_bytes is not None else "it is gone")
        yield from store.read(key, start)


async def _next(reader: _Reader) -> bytes:
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await in_daemon_thread(reader.next)
    except TimeoutError:
        raise StoreError(f"it did not answer within {READ_TIMEOUT_S:.0f} s") from None
