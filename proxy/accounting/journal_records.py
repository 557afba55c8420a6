"""The journal's bytes: records framed with kind, length and checksum. Pure: no disk, no clock.

A frame is `TG1` + kind, payload length, CRC-32 of kind and payload, payload (JSON). A journal that was cut at any byte
reads as the frames that are whole. Zeros (a preallocated segment's rest) are no frame.

See docs/reference/events-and-webhooks.md#from-call-to-database.
"""

import struct
from collections.abc import Iterator
from enum import Enum
from zlib import crc32

_HEAD = struct.Struct("<4sII")
pack_head = _HEAD.pack
"""Kind's magic, payload length, checksum: for who frames what each call writes, and spares itself `frame`."""
MAGIC = b"TG1"
HEAD_BYTES = _HEAD.size
MAX_PAYLOAD_BYTES = 256 * 1024
"""No record is larger: what claims to be is not a frame."""


class Kind(Enum):
    """What a record says. END closes a segment: the journal goes on in the next one.

    ANSWERED is no longer written: older workers marked with it that an answer had begun, where PROGRESS is written now.
    """

    OPEN = b"TG1O"
    ANSWERED = b"TG1A"
    PROGRESS = b"TG1P"
    CLOSE = b"TG1C"
    END = b"TG1E"

    def __init__(self, magic: bytes) -> None:
        self.magic = magic  # plain attributes: `value`, and a member as a key, cost more than the checksum
        self.seed = crc32(magic)


_KINDS = {kind.magic: kind for kind in Kind}


Record = tuple[Kind, bytes, int]
"""A whole record: its kind, its payload, where the next one starts. A plain tuple: each call's records make two."""


def frame(kind: Kind, payload: bytes) -> bytes:
    """One record as it stands in the journal."""
    return pack_head(kind.magic, len(payload), crc32(payload, kind.seed)) + payload


def frame_at(data: bytes, offset: int) -> Record | None:
    """The record that starts at `offset`; None when no whole, undamaged one does."""
    return next(frames(data, offset), None)


def frames(data: bytes, offset: int = 0) -> Iterator[Record]:
    """The records from `offset` on, up to the first place that holds none."""
    last, unpack, kinds = len(data) - HEAD_BYTES, _HEAD.unpack_from, _KINDS
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
    """Where the next whole record starts beyond damage at `offset`; None when there is none."""
    while (offset := data.find(MAGIC, offset + 1)) >= 0:
        if frame_at(data, offset) is not None:
            return offset
    return None


def count_closes(data: bytes) -> tuple[int, int, bool]:
    """How many calls end in `data`, up to which byte that holds, and whether the segment ends there. Heads only."""
    closes, offset = 0, 0
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
