"""The checkpoint store as control uses it, outside the event loop: it reads files for downloads and writes uploads."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NoReturn, Protocol

from control.errors import CheckpointFileNotFoundError, CheckpointStoreUnavailableError
from runtime.daemon_threads import in_daemon_thread, start_daemon_thread
from runtime.log_lines import OutageLog, cause_of
from runtime.object_store import NotInStoreError, ObjectStore, StoreError

READ_TIMEOUT_S = 60.0
"""The time for one piece. A store that hangs must not keep its downloads open for ever."""
WRITE_TIMEOUT_S = 60.0
"""The time in which the store must take another piece, and for a removal."""
log = logging.getLogger(__name__)


class CheckpointStore:
    """The store at an fsspec URL. None: control does not know one."""

    def __init__(self, url: str | None) -> None:
        self._store = ObjectStore(url) if url else None
        self._outage = OutageLog(log)

    @asynccontextmanager
    async def reading(self, key: str, size_bytes: int, start: int = 0) -> "AsyncIterator[Download]":
        """The file of that key and size, from byte `start` on. Its first piece is there already.

        CheckpointFileNotFoundError if the store does not have it; CheckpointStoreUnavailableError.
        """
        reader = _Reader(self._present(), key, size_bytes, start)
        try:
            yield Download(reader, await self._first(reader))
        finally:
            start_daemon_thread(reader.close)

    def check(self) -> None:
        """CheckpointStoreUnavailableError if control does not know a store."""
        self._present()

    async def write(self, key: str, size_bytes: int, pieces: "Pieces") -> None:
        """Write a file of what `pieces` yields, in a thread. What `pieces` raises passes through.

        CheckpointStoreUnavailableError, also when the store takes no further piece. Then a part of it may be there.
        """
        writing = asyncio.ensure_future(in_daemon_thread(self._present().write, key, size_bytes, iter(pieces)))
        try:
            while not writing.done():
                count = pieces.piece_count
                await asyncio.wait((writing,), timeout=WRITE_TIMEOUT_S)
                if not writing.done() and pieces.piece_count == count:
                    self._fail(StoreError(f"it took nothing within {WRITE_TIMEOUT_S:.0f} s"))
            with self._failures():
                writing.result()
        finally:
            if not writing.done():
                pieces.stop()
                writing.add_done_callback(_forget)

    async def remove(self, prefix: str) -> None:
        """Remove what is below this prefix. CheckpointStoreUnavailableError."""
        await self._brief(lambda store: store.remove(prefix))

    async def remove_file(self, key: str) -> None:
        """CheckpointStoreUnavailableError."""
        await self._brief(lambda store: store.remove_file(key))

    def _present(self) -> ObjectStore:
        if self._store is None:
            raise CheckpointStoreUnavailableError("TOLLGATE_CHECKPOINT_STORE is not set for control.")
        return self._store

    async def _brief(self, work: Callable[[ObjectStore], None]) -> None:
        store = self._present()
        with self._failures():
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await in_daemon_thread(work, store)
            except TimeoutError:
                raise StoreError(f"it did not answer within {WRITE_TIMEOUT_S:.0f} s") from None

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self._fail(error)
        self._outage.ends("The checkpoint store can be used again.")

    def _fail(self, error: StoreError) -> NoReturn:
        self._outage.begins(
            f"The checkpoint store {self._store} cannot be used ({cause_of(error)}); downloads and uploads are answered"
            " 503. Check TOLLGATE_CHECKPOINT_STORE and its credentials."
        )
        raise CheckpointStoreUnavailableError(str(error)) from None

    async def _first(self, reader: "_Reader") -> bytes:
        with self._failures():
            try:
                return await _next(reader)
            except NotInStoreError:
                raise CheckpointFileNotFoundError from None


class Pieces(Protocol):
    """The content of a file that is to be written; a thread iterates over it."""

    @property
    def piece_count(self) -> int:
        """Return how many pieces were taken: it grows while the store works."""
        ...

    def __iter__(self) -> Iterator[bytes]: ...

    def stop(self) -> None:
        """Let the iteration raise from now on: nobody waits for the file any more."""
        ...


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


def _forget(writing: "asyncio.Future[None]") -> None:
    """Look at the error of a write that nobody waits for any more, or asyncio would log it."""
    if not writing.cancelled():
        writing.exception()


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
