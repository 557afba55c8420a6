"""Reads a tar archive that its author may have made to harm the trainer: forwards, once, with bounded memory.

`tarfile` reads headers of any length into memory, and takes a broken header behind the first for the archive's end. The
stream below it bounds the one and shows the other.
"""

import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

_MAX_HEADER_BYTES = 1024 * 1024
"""The bytes of all headers of one member: long names, extended attributes."""
_PIECE_BYTES = 1024 * 1024
_GZIP = b"\x1f\x8b"


class BadArchiveError(Exception):
    """The archive cannot be unpacked. The message says why."""


@dataclass(frozen=True, slots=True)
class Member:
    """An entry of an archive. `size_bytes`: 0 unless it is a file with content of its own."""

    name: str
    is_directory: bool
    is_executable: bool
    size_bytes: int
    target: str | None = None
    """The target of a symbolic link, as the link has it."""
    same_as: str | None = None
    """The member whose file this is another name of: a hard link."""


class ArchiveReader:
    """The members of an archive; the content of one is read before the next one is asked for."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._stream = _Stream(_unzipped(pieces))

    def members(self) -> Iterator[Member]:
        """BadArchiveError for an archive that is broken, or has a kind of member that is not unpacked."""
        archive = self._archive()
        while True:
            self._stream.budget = _MAX_HEADER_BYTES
            try:
                entry = archive.next()
            except (tarfile.TarError, ValueError, OverflowError, RecursionError, IndexError) as error:
                raise BadArchiveError(f"it is not a tar archive ({error})") from None
            if entry is None:
                break
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep every one in memory
            yield _member(entry)
        if self._stream.last.strip(b"\0"):
            raise BadArchiveError("it is broken, or cut off")

    def content(self, member: Member) -> Iterator[bytes]:
        """The content of the member that came last. BadArchiveError if the archive ends in it."""
        self._stream.budget = rest = member.size_bytes
        while rest:
            piece = self._stream.read(min(rest, _PIECE_BYTES))
            if not piece:
                raise BadArchiveError("it is cut off")
            rest -= len(piece)
            yield piece

    def _archive(self) -> tarfile.TarFile:
        self._stream.budget = _MAX_HEADER_BYTES
        try:
            return tarfile.TarFile(fileobj=cast(BinaryIO, self._stream), mode="r", errorlevel=2)
        except (tarfile.TarError, ValueError, OverflowError, RecursionError, IndexError) as error:
            raise BadArchiveError(f"it is not a tar archive ({error})") from None


class _Stream:
    """A file that `tarfile` can read: it seeks forwards only. `budget`: the bytes that may still be read."""

    mode = "rb"
    name = ""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.budget = 0
        self.last = b""
        """The bytes that were read last."""
        self._pieces = pieces
        self._rest = b""
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, position: int) -> None:
        """Skip up to a position. What is skipped counts for no budget. Backwards is a ValueError."""
        if position < self._at:
            raise ValueError("the archive refers back")
        while position > self._at and self._read(min(position - self._at, _PIECE_BYTES)):
            pass

    def read(self, size: int) -> bytes:
        """Fewer bytes only at the end. ValueError beyond the budget."""
        if size > self.budget:
            raise ValueError("a header is too long")
        pieces = list[bytes]()
        while size and (piece := self._read(size)):
            pieces.append(piece)
            size -= len(piece)
        self.last = b"".join(pieces)
        self.budget -= len(self.last)
        return self.last

    def _read(self, size: int) -> bytes:
        """Read at least a byte, unless the archive has ended."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = piece
        piece = self._rest[:size]
        self._rest = self._rest[size:]
        self._at += len(piece)
        return piece


def _member(entry: tarfile.TarInfo) -> Member:
    if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()) or entry.issparse():
        raise BadArchiveError(f"{entry.name[:200]!r} is no regular file, directory or link")
    size_bytes = entry.size if entry.isreg() else 0
    target = entry.linkname if entry.issym() else None
    same_as = entry.linkname if entry.islnk() else None
    return Member(entry.name, entry.isdir(), bool(entry.mode & 0o100), size_bytes, target, same_as)


def _unzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The archive itself: gzip is unpacked in small pieces."""
    start = b""
    while len(start) < len(_GZIP) and (piece := next(pieces, None)) is not None:
        start += piece
    if not start.startswith(_GZIP):
        yield start
        yield from pieces
        return
    unzipper = zlib.decompressobj(wbits=31)
    piece = start
    while True:
        try:
            content = unzipper.decompress(piece, _PIECE_BYTES)
        except zlib.error:
            raise BadArchiveError("its compression is broken") from None
        if content:
            yield content
        piece = unzipper.unconsumed_tail
        if unzipper.eof or (not piece and not content and (piece := next(pieces, b"")) == b""):
            return
