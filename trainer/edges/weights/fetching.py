"""Fetches one entry of a job's weights: lists its files, downloads each, and tells how far it is.

The directory is the job's, and other jobs of its user may run: paths are walked part by part, and no symbolic link is
followed. A file has its name once it is whole. See docs/reference/training.md#weights.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from policy.training.weights import WEIGHTS_PATH, BucketSource, HubSource, UrlSource, Weights, parse_source
from runtime.backoff import pause_s
from runtime.daemon_threads import in_daemon_thread
from trainer.backend import WeightsError
from trainer.edges.checkpoints.directory import opened_below, opened_directory
from trainer.edges.checkpoints.writing import give, make_parents
from trainer.edges.weights.downloads import Downloads, OtherRegionError
from trainer.edges.weights.file_download import Budget, FileDownload
from trainer.edges.weights.hub import hub_files
from trainer.edges.weights.object_listing import bucket_files
from trainer.edges.weights.remote_files import RemoteFile, Request, SourceAwayError, bearer, check_files

__all__ = ["Budget", "Fetch"]
MAX_FAILURES = 8
"""The failures in a row, without a byte between them, after which a source counts as away."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
TELL_EVERY_S = 15.0
_MAX_SHOWN_CHARS = 160
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
Result = TypeVar("Result")


class Fetch:
    """One entry, the one at `place` among those of its job. `tell` gets lines for the job's log; it may block."""

    def __init__(self, place: int, weights: Weights, downloads: Downloads, tell: Callable[[str], None]) -> None:
        self._weights = weights
        self._downloads = downloads
        self._tell = tell
        self._name = f"weights.{place} ({weights.shown_source[:_MAX_SHOWN_CHARS]})"
        self._failures = 0
        self._bytes = 0
        self._told_at = time.monotonic()

    async def run(self, directory: Path, budget: Budget) -> None:
        """Put all files into the directory of weights below `directory`. WeightsError, which names the entry."""
        try:
            files = await self._persistently(self._list)
            files = await in_daemon_thread(self._wanted, files)
            check_files(files)
            size_bytes = sum(file.size_bytes or 0 for file in files)
            budget.check(size_bytes)
            has_sizes = all(file.size_bytes is not None for file in files)
            total = _gib(size_bytes) if has_sizes else "of a size that is not listed"
            await self._say(f"fetching {_files(len(files))} ({total})")
            with opened_directory(directory) as root:
                await self._fetch(root, files, budget)
        except OSError as error:
            raise WeightsError(f"{self._name} could not be written: {error.strerror}") from None
        except WeightsError as error:
            raise WeightsError(f"{self._name} could not be fetched: {error}") from None
        where = f"$BT_WEIGHTS_DIR/{self._weights.location}"
        await self._say(f"{_files(len(files))} ({_gib(self._bytes)}) fetched to {where}")

    def _wanted(self, files: Sequence[RemoteFile]) -> list[RemoteFile]:
        return [file for file in files if not file.path or self._weights.patterns.match(file.path)]

    async def _list(self) -> Sequence[RemoteFile]:
        source = parse_source(self._weights.source)
        credential = self._weights.credential
        match source:
            case HubSource():
                return await hub_files(self._downloads, source, bearer(credential))
            case BucketSource():
                return await bucket_files(self._downloads, source, credential)
            case UrlSource():
                return [RemoteFile("", Request(source.url, bearer(credential)))]

    async def _fetch(self, root: int, files: Sequence[RemoteFile], budget: Budget) -> None:
        for number, file in enumerate(files):
            path = f"{WEIGHTS_PATH}/{self._weights.location}/{file.path}".rstrip("/")
            make_parents(root, path)
            with _new_file(root, path) as descriptor:
                download = FileDownload(self._downloads, file, descriptor, budget)
                on_written = partial(self._wrote, f"{number} of {_files(len(files))}")
                await self._persistently(partial(download.run, on_written))

    async def _wrote(self, so_far: str, size_bytes: int) -> None:
        """Count bytes that came, and tell of them now and then."""
        self._failures = 0
        self._bytes += size_bytes
        if time.monotonic() - self._told_at >= TELL_EVERY_S:
            await self._say(f"{so_far}, {_gib(self._bytes)}")

    async def _persistently(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Repeat it while the source is away. WeightsError if that lasts."""
        self._failures = 0
        while True:
            try:
                return await work()
            except OtherRegionError:
                raise WeightsError("the source does not answer for the bucket's region") from None
            except SourceAwayError as error:
                self._failures += 1
                if self._failures >= MAX_FAILURES:
                    raise WeightsError(f"{error}, {MAX_FAILURES} times") from None
                await self._say(f"{error}; trying again")
                await asyncio.sleep(pause_s(self._failures, FIRST_PAUSE_S, LONGEST_PAUSE_S))

    async def _say(self, text: str) -> None:
        self._told_at = time.monotonic()
        await asyncio.to_thread(self._tell, f"{self._name}: {text}")


@contextlib.contextmanager
def _new_file(root: int, path: str) -> Iterator[int]:
    """A descriptor of a new file, which gets its name at the end of the block: another machine may share the directory.

    OSError.
    """
    parents, _, name = path.rpartition("/")
    draft = f".{secrets.token_hex(8)}.part"
    with opened_below(root, parents, os.O_RDONLY | os.O_DIRECTORY) as parent:
        try:
            with opened_below(parent, draft, _WRITE) as descriptor:
                give(descriptor, root)
                os.fchmod(descriptor, 0o644)
                yield descriptor
            os.rename(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=parent)
            raise


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 1024**3:.1f} GiB" if size_bytes >= 1024**3 else f"{size_bytes / 1024**2:.1f} MiB"
