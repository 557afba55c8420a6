"""An answer is read by its first bytes: at the upstream's pace, in any encoding, and whatever its label."""

import orjson
import pytest

from policy.billing import Tokens
from policy.endpoints import CHAT_COMPLETIONS
from proxy.accounting.answer_form import Form, form_of, form_of_values
from tests.proxy.dialects.samples import (
    JSON,
    MESSAGES,
    SLUG,
    VENDOR_B,
    answer_reader,
    delivered_counter,
    frames,
    read,
    received,
)
from tests.upstream.oddities.labels import whole

ASK = {"model": SLUG, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
REPORTED = Tokens(input=12, output=5)


@pytest.mark.parametrize(
    ("beginning", "form"),
    [
        *((text, None) for text in (b"", b"\n \r\n", b"\xef\xbb", b"\xef\xbb\xbf", b"d", b"data", b"event", b"retr")),
        *((text, Form.STREAM) for text in (b"data:", b"\xef\xbb\xbfdata: x", b"\n\nevent: x", b": ping", b"id:", b":")),
        *((text, Form.JSON) for text in (b"{", b" [", b"\xef\xbb\xbf{", b"\xff\xfe{\0", b"\0\0\0{", b"\0\xfe\xff\0{")),
        *((text, Form.OTHER) for text in (b"<html>", b"hello", b"idea: x", b"NaN", b"\0data: x", b"dat{")),
    ],
)
def test_first_bytes_tell_the_form(beginning: bytes, form: Form | None) -> None:
    assert form_of(beginning) is form


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_body_in_another_encoding_is_read_and_keeps_it(encoding: str) -> None:
    body = orjson.dumps(whole(CHAT_COMPLETIONS)).decode().encode(encoding)
    passed = answer_reader(received(ASK), VENDOR_B, JSON)
    assert orjson.loads(read(passed, [body[:3], body[3:]]).decode(encoding)) == whole(CHAT_COMPLETIONS) | {
        "model": SLUG
    }
    assert passed.reported.tokens == REPORTED
    translated = answer_reader(received(ASK, MESSAGES), VENDOR_B, JSON)
    assert orjson.loads(read(translated, [body]))["content"][0]["text"] == "Hello there"
    assert translated.reported.tokens == REPORTED


@pytest.mark.parametrize("label", ["application/json", "text/plain", "application/octet-stream", ""])
def test_stream_passes_at_its_pace_whatever_its_label(label: str) -> None:
    answer = answer_reader(received(ASK | {"stream": True}), VENDOR_B, [("content-type", label)])
    chunk = frames({"choices": [{"delta": {"content": "a"}}]}, has_done=False)
    assert answer.feed(chunk[:3]) == b""
    assert answer.feed(chunk[3:]) == chunk
    assert answer.feed(chunk) == chunk


@pytest.mark.parametrize("label", ["application/x-ndjson", "application/json", "text/plain", "text/event-stream", ""])
def test_lines_of_json_pass_at_their_pace(label: str) -> None:
    answer = answer_reader(received(ASK | {"stream": True}), VENDOR_B, [("content-type", label)])
    line = b'{"model":"gpt-x","choices":[{"delta":{"content":"a"}}]}\n'
    assert answer.feed(line) == b""
    assert answer.feed(line) == line.replace(b"gpt-x", SLUG.encode())


@pytest.mark.parametrize("label", ["application/x-ndjson", "application/json", "text/plain", ""])
def test_lines_of_json_are_translated_at_their_pace(label: str) -> None:
    answer = answer_reader(received(ASK | {"stream": True}, MESSAGES), VENDOR_B, [("content-type", label)])
    lines = [b'{"choices":[{"delta":{"content":"%s"}}]}\n' % word for word in (b"one", b"two", b"three")]
    assert answer.feed(lines[0]) == b""  # one value, as long as no other follows
    began = answer.feed(lines[1])
    assert b'"text":"one"' in began
    assert b'"text":"two"' in began
    assert b'"text":"three"' in answer.feed(lines[2])


@pytest.mark.parametrize(
    ("beginning", "form"),
    [
        *((text, None) for text in (b'{"a":1}', b'{"a":1}\n', b'\n{"a":1}\r\n', b"{", b"{\n ")),
        *((text, Form.JSON_LINES) for text in (b'{"a":1}\n{', b'{"a":1}\r\n\r\n{"a', b'\n{"a":1} \n {')),
        *((text, Form.JSON) for text in (b'{\n"a":1', b"[{},\n{", b'{"a":{}\n}', b'{"a":1}\n[', b"[\n{}")),
    ],
)
def test_second_line_tells_lines_from_one_value(beginning: bytes, form: Form | None) -> None:
    assert form_of_values(beginning) is form


@pytest.mark.parametrize("body", [b'{"error":{"message":"overloaded"}}\n', b'{\n"choices":[]}\n', b'{"choices":[]}'])
def test_other_json_is_held_until_its_end(body: bytes) -> None:
    answer = answer_reader(received(ASK | {"stream": True}), VENDOR_B, JSON)
    assert answer.feed(body) == answer.feed(b" ") == b""
    assert not answer.streams
    assert answer.end() == body + b" "


@pytest.mark.parametrize(
    "data",
    [
        b"Hello there, dear caller",
        b'{"reply":"Hello there, dear caller"}',
        b'{"choices":[{"message":{"content":"Hello ther',
    ],
)
def test_what_is_no_answer_of_the_dialect_is_counted(data: bytes) -> None:
    delivered = delivered_counter(received(ASK))
    delivered.pending.append(data)
    assert delivered.tokens(None).output > 0
