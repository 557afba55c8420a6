"""Frames do not depend on how the bytes were segmented."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import sse
from tests.proxy.dialects.samples import CUTS, cut

BLANKS = (b"\n", b"\r\n", b"\n\n", b"\r\n\r\n", b"\r")
LINES = (b"data: x", b"event: e", b"y" * 9)
COMMENTS = (b": ping", b":")
STREAMS = st.lists(st.sampled_from(BLANKS + LINES + COMMENTS), max_size=25).map(b"".join)
WITHOUT_COMMENTS = st.lists(st.sampled_from(BLANKS + LINES), max_size=25).map(b"".join)


def split(pieces: list[bytes], limit: int = sse.MAX_FRAME_BYTES) -> list[sse.Piece]:
    """All pieces of a stream, including the bytes after the last blank line."""
    framer = sse.Framer(limit)
    parts = [piece for data in pieces for piece in framer.split(data)]
    rest = framer.flush()
    assert len(rest) <= limit + 2
    return [*parts, (rest, sse.FRAME)] if rest else parts


def of_kind(pieces: list[sse.Piece], *kinds: int) -> list[bytes]:
    return [data for data, kind in pieces if kind in kinds]


@given(STREAMS, CUTS)
def test_segmentation_does_not_change_the_frames(stream: bytes, places: list[int]) -> None:
    at_once = split([stream])
    in_pieces = split(cut(stream, places))
    assert b"".join(data for data, _ in in_pieces) == stream
    assert of_kind(in_pieces, sse.FRAME) == of_kind(at_once, sse.FRAME)


@given(WITHOUT_COMMENTS, CUTS, st.integers(4, 20))
def test_segmentation_does_not_change_the_heads_of_oversized_frames(
    stream: bytes, places: list[int], limit: int
) -> None:
    ended = stream + b"\n\n"
    at_once = split([ended], limit)
    in_pieces = split(cut(ended, places), limit)
    assert b"".join(data for data, _ in in_pieces) == ended
    assert of_kind(in_pieces, sse.FRAME, sse.HEAD) == of_kind(at_once, sse.FRAME, sse.HEAD)
    assert all(len(data) <= limit for data in of_kind(in_pieces, sse.FRAME, sse.HEAD))


@given(STREAMS, st.binary(max_size=3).filter(lambda more: more))
def test_whole_frames_are_recognized_without_a_framer(stream: bytes, more: bytes) -> None:
    framer = sse.Framer()
    pieces = framer.split(stream)
    if frames := sse.whole_frames(stream):
        assert (pieces, framer.at_boundary) == ([(frame, sse.FRAME) for frame in frames], True)
    elif b"\r" not in stream:
        assert not pieces or {kind for _, kind in pieces} != {sse.FRAME} or not framer.at_boundary
    framer.split(more)
    assert framer.at_boundary == (not framer.flush())


@pytest.mark.parametrize("blank", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n"])
def test_every_kind_of_blank_line_ends_a_frame(blank: bytes) -> None:
    assert split([b"data: a" + blank, b"data: b" + blank]) == [
        (b"data: a" + blank, sse.FRAME),
        (b"data: b" + blank, sse.FRAME),
    ]


def test_comment_passes_before_the_next_frame_is_complete() -> None:
    framer = sse.Framer()
    assert framer.split(b": ping\ndata: a") == [(b": ping\n", sse.COMMENT)]
    assert framer.split(b"\n\n\n:\n") == [(b"data: a\n\n", sse.FRAME), (b"\n:\n", sse.COMMENT)]


def test_oversized_frame_passes_in_parts() -> None:
    framer = sse.Framer(10)
    assert framer.split(b"data: 0123") == []
    assert framer.split(b"456789") == [(b"data: 0123", sse.HEAD), (b"4567", sse.MIDDLE)]
    assert framer.split(b"x" * 100 + b"\n") == [(b"89" + b"x" * 99, sse.MIDDLE)]
    assert framer.split(b"\ndata: b\n\n") == [(b"x\n\n", sse.TAIL), (b"data: b\n\n", sse.FRAME)]


@pytest.mark.parametrize(
    ("frame", "data", "event"),
    [
        (b"data: x\n\n", b"x", b""),
        (b"data:x\r\n\r\n", b"x", b""),
        (b"event: e\ndata: {\ndata: }\n\n", b"{\n}", b"e"),
        (b"id: 1\nretry: 5\n\n", b"", b""),
        (b": c\ndata: x\nevent:e\n\n", b"x", b"e"),
    ],
)
def test_fields_of_a_frame_are_read(frame: bytes, data: bytes, event: bytes) -> None:
    assert (sse.data_of(frame), sse.event_of(frame)) == (data, event)
    span = sse.data_span(frame)
    assert (span is not None) == (frame.count(b"data:") == 1)
    assert span is None or frame[span[0] : span[1]] == data


@given(CUTS)
def test_byte_order_mark_passes_outside_of_frames(places: list[int]) -> None:
    stream = b"\xef\xbb\xbfdata: x\n\n: ping\n\ndata: y\n\n"
    pieces = split(cut(stream, places))
    assert b"".join(data for data, _ in pieces) == stream
    assert of_kind(pieces, sse.FRAME) == [b"data: x\n\n", b"data: y\n\n"]


@pytest.mark.parametrize(
    "stream", [b"\xef", b"\xef\xbb", b"\xef\xbb\xbf", b"\xef\xbb\xbe\n\n", b"data: \xef\xbb\xbf\n\n"]
)
def test_incomplete_byte_order_mark_passes(stream: bytes) -> None:
    assert b"".join(data for data, _ in split(cut(stream, range(9)))) == stream


OBJECTS = st.lists(st.sampled_from((b'{"a":1}', b'{"b": "\\n"}', b"\n", b"\r\n", b" \n\t")), max_size=20).map(
    b"\n".join
)


@given(OBJECTS, CUTS)
def test_each_line_of_json_is_a_frame_however_it_is_segmented(lines: bytes, places: list[int]) -> None:
    framer = sse.LineFramer()
    frames = [data for piece in cut(lines, places) for data, _ in framer.split(piece)]
    values = [sse.data_of(frame).strip() for frame in (*frames, framer.flush())]
    assert [data for data in values if data] == [line for line in map(bytes.strip, lines.split(b"\n")) if line]


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" \n", b"\n\t\n"])
def test_blank_lines_between_lines_of_json_make_no_frames(blank: bytes) -> None:
    """Each frame costs, and a read may hold thousands of blank lines."""
    framer = sse.LineFramer()
    pieces = framer.split(b'{"a":1}\n' + 1000 * blank + b'{"b":2}\n')
    assert [sse.data_of(data) for data, _ in pieces] == [b'{"a":1}', b'{"b":2}']
