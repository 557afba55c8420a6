"""An answer's kind does not depend on how it was cut into chunks."""

from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.async_requests.answer_text import AnswerKind, AnswerText
from proxy.time_slices import at_once


def kind_of(*chunks: bytes) -> AnswerKind:
    answer = AnswerText()
    for chunk in chunks:
        at_once(answer.add(chunk))
    return answer.kind()


def expected(answer: bytes) -> AnswerKind:
    try:
        orjson.loads(answer)
    except orjson.JSONDecodeError:
        pass
    else:
        return AnswerKind.JSON
    try:
        answer.decode()
    except UnicodeDecodeError:
        return AnswerKind.BINARY
    return AnswerKind.TEXT


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b'{"a": 1.0}\n', AnswerKind.JSON),
        (b"null", AnswerKind.JSON),
        ('"é"'.encode(), AnswerKind.JSON),
        (b"", AnswerKind.TEXT),
        (b" ", AnswerKind.TEXT),
        (b"NaN", AnswerKind.TEXT),
        (b'{"a": Infinity}', AnswerKind.TEXT),
        (b"[1,]", AnswerKind.TEXT),
        (b"{'a': 1}", AnswerKind.TEXT),
        (b'{"a":1}{"a":2}', AnswerKind.TEXT),
        (b'"cut', AnswerKind.TEXT),
        ("\ufeff1".encode(), AnswerKind.TEXT),
        ("é".encode()[:1], AnswerKind.BINARY),
        (b'"\xff"', AnswerKind.BINARY),
        (b'"\xed\xa0\x80"', AnswerKind.BINARY),  # a surrogate
        (b"\x89PNG\r\n\x1a\n", AnswerKind.BINARY),
        (b"a\xffb" * 100_000, AnswerKind.BINARY),
        (b"prose, " * 100_000, AnswerKind.TEXT),
        (b'["%b"]' % (b"A" * 1_000_000), AnswerKind.JSON),
    ],
)
def test_kind_of_an_answer(answer: bytes, kind: AnswerKind) -> None:
    assert kind_of(answer) is kind
    assert kind_of(answer[:1], answer[1:], b"") is kind
    assert expected(answer) is kind


@given(
    st.binary(max_size=20) | st.text(max_size=20).map(str.encode) | st.text(max_size=20).map(orjson.dumps),
    st.lists(st.integers(0, 20), max_size=4),
)
def test_kind_is_that_of_the_whole_answer(answer: bytes, at: list[int]) -> None:
    places = sorted({0, len(answer), *(place % (len(answer) + 1) for place in at)})
    assert kind_of(*(answer[start:end] for start, end in pairwise(places))) is expected(answer)


def test_large_chunk_is_looked_at_in_many_steps() -> None:
    assert sum(1 for _ in AnswerText().add(b'"' + b"A" * 1_000_000)) > 20
