"""A tree of files in a store that fsspec reaches by a URL: a directory, `memory://`, `s3://` and others. Blocking.

Relies on no rename, no directories and no listing cache. Every failure is a StoreError, whose message has no secrets.
Call it in threads (`runtime/daemon_threads.py`).
"""

import contextlib
import io
import os
import re
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from fsspec.core import url_to_fs

CHUNK_BYTES = 1024 * 1024
_MIN_PART_BYTES = 8 * 1024 * 1024
_MAX_PARTS = 9000
"""A little fewer than S3 allows for one file."""
_MAX_REASON_CHARS = 300
_USERINFO = re.compile(r"(?<=://)[^/@\s]*@")
_QUERY = re.compile(r"(?<=\w)\?\S*")


class StoreError(Exception):
    """The store is away, is full, or does not allow what was asked. The message is the reason, without secrets."""


class NotInStoreError(StoreError):
    """The store has no such file."""


class ObjectStore:
    """Keys are relative to the URL, with `/`. Threads may share one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._secrets = _secrets_of(url)
        self._opening = threading.Lock()
        self._opened: tuple[Any, str] | None = None

    def __str__(self) -> str:
        """The URL without credentials."""
        return _USERINFO.sub("", self._url).partition("?")[0]

    def size(self, key: str) -> int | None:
        """None: the store has no such file."""
        try:
            with self._failures():
                fs, root = self._store()
                size = fs.info(f"{root}/{key}")["size"]
        except NotInStoreError:
            return None
        return None if size is None else int(size)

    def read(self, key: str, start: int = 0) -> Iterator[bytes]:
        """The content from byte `start` on, in pieces of at most CHUNK_BYTES."""
        with self._failures():
            fs, root = self._store()
            with fs.open(f"{root}/{key}", "rb", block_size=CHUNK_BYTES) as file:
                if start:
                    file.seek(start)
                while piece := file.read(CHUNK_BYTES):
                    yield piece

    def write(self, key: str, size_bytes: int, pieces: Iterator[bytes]) -> None:
        """Store what `pieces` yields, of which `size_bytes` are expected. What `pieces` raises passes through.

        After a failure the store may have a part of it; try again, or `remove` it.
        """
        with self._failures():
            file = self._create(key, max(_MIN_PART_BYTES, size_bytes // _MAX_PARTS + 1))
        try:
            for piece in pieces:
                with self._failures():
                    file.write(piece)
        finally:
            with self._failures():
                _close_durably(file)

    def remove(self, prefix: str) -> None:
        """Remove all files below `prefix`, and the directories where the store has some. Nothing there: nothing."""
        with self._failures():
            fs, root = self._store()
            _remove(fs, f"{root}/{prefix}")

    def remove_file(self, key: str) -> None:
        """Remove one file. Not there: nothing."""
        with contextlib.suppress(NotInStoreError), self._failures():
            fs, root = self._store()
            fs.rm_file(f"{root}/{key}")

    def names(self, prefix: str) -> list[str]:
        """The names of what is directly below `prefix`."""
        with self._failures():
            fs, root = self._store()
            return [path.rsplit("/", 1)[1] for path, _ in _children(fs, f"{root}/{prefix}")]

    def _store(self) -> tuple[Any, str]:
        with self._opening:
            if self._opened is None:
                fs, root = url_to_fs(self._url, use_listings_cache=False)
                self._opened = fs, root.rstrip("/")
            return self._opened

    def _create(self, key: str, part_bytes: int) -> BinaryIO:
        fs, root = self._store()
        path = f"{root}/{key}"
        try:
            file: BinaryIO = fs.open(path, "wb", block_size=part_bytes)
        except FileNotFoundError:  # a store with directories
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            file = fs.open(path, "wb", block_size=part_bytes)
        return file

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Any error as StoreError: each store has its own, and most are not an OSError."""
        try:
            yield
        except StoreError:
            raise
        except FileNotFoundError as error:
            raise NotInStoreError(self._reason(error)) from error
        except Exception as error:
            raise StoreError(self._reason(error)) from error

    def _reason(self, error: Exception) -> str:
        """One line. Libraries quote URLs with credentials and signatures."""
        text = " ".join(f"{type(error).__name__}: {error}".split())
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return _QUERY.sub("", _USERINFO.sub("", text))[:_MAX_REASON_CHARS]


def _close_durably(file: BinaryIO) -> None:
    """A local file is on its disk afterwards; other stores say so themselves."""
    try:
        with contextlib.suppress(io.UnsupportedOperation, AttributeError):
            descriptor = file.fileno()
            file.flush()
            os.fsync(descriptor)
    finally:
        file.close()


def _children(fs: Any, path: str) -> list[tuple[str, bool]]:
    """(path, is a directory) of each. `fs.find` would hide errors, and `fs.rm` and `fs.glob` take names as patterns."""
    try:
        listed = fs.ls(path, detail=True)
    except FileNotFoundError:
        return []
    entries = ((entry["name"].rstrip("/"), entry["type"] == "directory") for entry in listed)
    return [(name, is_directory) for name, is_directory in entries if name != path]


def _remove(fs: Any, path: str) -> None:
    for child, is_directory in _children(fs, path):
        if is_directory:
            _remove(fs, child)
        else:
            with contextlib.suppress(FileNotFoundError):
                fs.rm_file(child)
    with contextlib.suppress(OSError, NotImplementedError):  # most stores have no directories
        fs.rmdir(path)


def _secrets_of(url: str) -> list[str]:
    """The credentials in a URL, also as they are once decoded."""
    secrets: set[str] = set()
    for part in url.split("::"):
        userinfo = _USERINFO.search(part)
        secrets |= set((userinfo[0][:-1] if userinfo else "").split(":")) | set(re.split("[=&]", urlsplit(part).query))
    secrets |= {unquote(secret) for secret in secrets}
    return sorted((secret for secret in secrets if len(secret) > 3), key=len, reverse=True)
