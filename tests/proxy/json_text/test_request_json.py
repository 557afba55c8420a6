"""A request with half of a surrogate pair is read, and its bytes go on as they were written."""

import orjson
import pytest

from proxy.json_text.json_edit import edit_members
from proxy.json_text.request_json import SHORT_BODY_BYTES, request_json_at_once, short_request_json
from proxy.refusals import MalformedRequestError

HALVES = [b"\\ud800", b"\\uDFFF", b"\\ud83d x", b"\\\\\\ud800", b"\xed\xa0\x80", b"\\ud83d\\ud83d\\ude00"]


@pytest.mark.parametrize("filler", [b"", b"x" * SHORT_BODY_BYTES], ids=["short", "long"])
@pytest.mark.parametrize("half", HALVES)
def test_half_of_a_surrogate_pair_passes_unchanged(half: bytes, filler: bytes) -> None:
    body = b'{"model":"acme/fast","messages":[{"role":"user","content":"%b %b"}],"n":1}' % (half, filler)
    read = request_json_at_once(body) if filler else short_request_json(body)
    assert read is not None
    json, outline = read
    assert (json["model"], json["n"]) == ("acme/fast", 1)
    edited = edit_members(body, json, {"model": b'"gpt-x"', "stream_options": b"{}"}, outline)
    assert bytes(edited) == b'{"stream_options":{},' + body[1:].replace(b"acme/fast", b"gpt-x")


@pytest.mark.parametrize("name", ["model", "metadata"])
def test_half_of_a_surrogate_pair_in_a_member_that_we_read_is_named(name: str) -> None:
    with pytest.raises(MalformedRequestError, match=name):
        short_request_json(b'{"%b":"\\ud800"}' % name.encode())


@pytest.mark.parametrize("body", [b'{"a":"\\ud800"', b'{"a":"\\ud800",}', b'["\\ud800"]', b'{"a":"\\ud8"}', b"\\ud800"])
def test_other_faults_are_refused_all_the_same(body: bytes) -> None:
    with pytest.raises(MalformedRequestError):
        short_request_json(body)
    assert orjson.loads(b'"\\ud83d\\ude00"') == "😀"
