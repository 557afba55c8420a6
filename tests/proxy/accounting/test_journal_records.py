"""The journal's encoding: of a truncated or damaged journal exactly the intact records are read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.accounting.journal_records import (
    HEAD_BYTES,
    MAX_PAYLOAD_BYTES,
    Kind,
    count_closes,
    frame,
    frame_at,
    frames,
    resume_at,
)

Records = list[tuple[Kind, bytes]]
payloads = st.binary(max_size=60).map(lambda content: content + b"]")
"""Payloads that end with no zeros, as JSON does: zeros behind the cut would complete such a record, and rightly."""
records = st.lists(st.tuples(st.sampled_from([Kind.OPEN, Kind.ANSWERED, Kind.CLOSE]), payloads))


@given(records, st.data())
def test_journal_truncated_at_any_byte_yields_its_complete_records(expected: Records, data: st.DataObject) -> None:
    encoded = [frame(*record) for record in expected]
    stream = b"".join(encoded)
    cut = data.draw(st.integers(0, len(stream)))
    whole = 0
    size = 0
    while whole < len(encoded) and size + len(encoded[whole]) <= cut:
        size += len(encoded[whole])
        whole += 1
    read = list(frames(stream[:cut] + bytes(64)))
    assert [(kind, payload) for kind, payload, _ in read] == expected[:whole]


@given(records.filter(bool), st.data())
def test_record_with_a_flipped_bit_is_not_read(expected: Records, data: st.DataObject) -> None:
    stream = bytearray(b"".join(frame(*record) for record in expected))
    place = data.draw(st.integers(0, len(stream) * 8 - 1))
    stream[place // 8] ^= 1 << place % 8
    read = [(kind, payload) for kind, payload, _ in frames(bytes(stream))]
    assert len(read) < len(expected)
    assert read == expected[: len(read)]


@given(records, st.binary(min_size=1, max_size=80))
def test_reading_resumes_after_damage(expected: Records, damage: bytes) -> None:
    stream = damage + b"".join(frame(*record) for record in expected)
    if frame_at(stream, 0) is not None:
        return
    at = resume_at(stream, 0)
    assert (at is None) == (not expected)
    if at is not None:
        assert [(kind, payload) for kind, payload, _ in frames(stream, at)] == expected


@given(records)
def test_counting_agrees_with_reading(expected: Records) -> None:
    stream = b"".join(frame(*record) for record in expected)
    closes = sum(kind is Kind.CLOSE for kind, _ in expected)
    assert count_closes(stream + bytes(HEAD_BYTES)) == (closes, len(stream), False)
    ended = stream + frame(Kind.END, b"")
    assert count_closes(ended + frame(Kind.CLOSE, b"x")) == (closes, len(ended), True)


def test_impossible_record_length_is_damage() -> None:
    huge = frame(Kind.OPEN, bytes(MAX_PAYLOAD_BYTES + 1))
    assert frame_at(huge, 0) is None
    assert frame_at(frame(Kind.OPEN, bytes(MAX_PAYLOAD_BYTES)), 0) is not None


@pytest.mark.parametrize("size", [0, 5, HEAD_BYTES, 4096])
def test_zeros_are_not_a_record(size: int) -> None:
    assert frame_at(bytes(size), 0) is None
