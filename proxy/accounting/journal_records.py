"""The journal's format: records framed with kind, length and checksum. Pure: no disk, no clock.

A frame is `TG1` + kind, payload length, CRC-32 of kind and payload, payload (JSON). A journal that is cut at any byte
yields its complete frames. Zeros, the rest of a preallocated segment, are not a frame.

See docs/reference/events-and-webhooks.md#from-call-to-database.
"""

import struct
from collections.abc import Iterator
from enum import Enum
from zlib import crc32

_HEAD = struct.Struct("<4sII")
pack_head = _HEAD.pack
"""Magic of the kind, payload length, checksum. Public for the writer, which frames each call's records inline."""
MAGIC = b"TG1"
HEAD_BYTES = _HEAD.size
MAX_PAYLOAD_BYTES = 256 * 1024
"""Largest record. A larger length means that the bytes are not a frame."""


class Kind(Enum):
    """The kind of a record. END closes a segment; the journal continues in the next one.

    ANSWERED is no longer written. Older workers marked the start of an answer with it, instead of PROGRESS.
    """

    OPEN = b"TG1O"
    ANSWERED = b"TG1A"
    PROGRESS = b"TG1P"
    CLOSE = b"TG1C"
    END = b"TG1E"

    def __init__(self, magic: bytes) -> None:
        self.magic = magic  # plain attributes: `value` and look-ups by member cost more than the checksum
        self.seed = crc32(magic)


_KINDS = {kind.magic: kind for kind in Kind}


Record = tuple[Kind, bytes, int]
"""A complete record: kind, payload, offset of the next one. A plain tuple, because each call makes two."""


def frame(kind: Kind, payload: bytes) -> bytes:
    """One record as bytes of the journal."""
    return pack_head(kind.magic, len(payload), crc32(payload, kind.seed)) + payload


def frame_at(data: bytes, offset: int) -> Record | None:
    """The record at `offset`; None if there is no complete, undamaged one."""
    return next(frames(data, offset), None)


def frames(data: bytes, offset: int = 0) -> Iterator[Record]:
    """The records from `offset` on, up to the first gap."""
    last = len(data) - HEAD_BYTES
    unpack = _HEAD.unpack_from
    kinds = _KINDS
    while offset <= last:
        magic, length, checksum = unpack(data, offset)
        kind = kinds.get(magic)
        if kind is None or length > MAX_PAYLOAD_BYTES:
            return
        start = offset + HEAD_BYTES
        offset = start + length
        payload = data[start:offset]
        if len(payload) < length or crc32(payload, kind.seed) != checksum:
            return
        yield kind, payload, offset


def resume_at(data: bytes, offset: int) -> int | None:
    """The offset of the next complete record after damage at `offset`; None if there is none."""
    while (offset := data.find(MAGIC, offset + 1)) >= 0:
        if frame_at(data, offset) is not None:
            return offset
    return None


def count_closes(data: bytes) -> tuple[int, int, bool]:
    """Calls that end in `data`, the bytes that this covers, and whether the segment ends. Reads only heads."""
    closes = 0
    offset = 0
    while len(data) - offset >= HEAD_BYTES:
        magic, length, _ = _HEAD.unpack_from(data, offset)
        kind = _KINDS.get(magic)
        if kind is None or offset + HEAD_BYTES + length > len(data):
            break
        offset += HEAD_BYTES + length
        closes += kind is Kind.CLOSE
        if kind is Kind.END:
            return closes, offset, True
    return closes, offset, False
