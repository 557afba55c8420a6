"""Requests with half of a surrogate pair, or a number beyond a double, are read, and go on as they were written."""

from itertools import product

import orjson
import pytest

from proxy.json_text.json_edit import edit_members
from proxy.json_text.request_json import (
    SHORT_BODY_BYTES,
    RequestJson,
    request_json_at_once,
    request_json_in_slices,
)
from proxy.refusals import MalformedRequestError
from proxy.time_slices import Slices

HALVES = [b"\\ud800", b"\\uDFFF", b"\\ud83d x", b"\\\\\\ud800", b"\xed\xa0\x80", b"\\ud83d\\ud83d\\ude00"]


async def read_request(body: bytes) -> RequestJson:
    """Read a body as `receive` does."""
    return request_json_at_once(body) or await request_json_in_slices(body, "w1", Slices())


def read_short(body: bytes) -> RequestJson:
    """Read a body that needs no slices."""
    parsed = request_json_at_once(body)
    assert parsed is not None
    return parsed


def test_long_body_that_the_parser_refuses_is_not_read_at_once() -> None:
    assert request_json_at_once(b'{"model":"acme/fast","x":"\\ud800%b"}' % (b"x" * SHORT_BODY_BYTES)) is None


@pytest.mark.parametrize("filler", [b"", b"x" * SHORT_BODY_BYTES], ids=["short", "long"])
@pytest.mark.parametrize("half", HALVES)
async def test_half_of_a_surrogate_pair_passes_unchanged(half: bytes, filler: bytes) -> None:
    body = b'{"model":"acme/fast","messages":[{"role":"user","content":"%b %b"}],"n":1}' % (half, filler)
    json, outline = await read_request(body)
    assert (json["model"], json["n"]) == ("acme/fast", 1)
    edited = edit_members(body, json, {"model": b'"gpt-x"', "stream_options": b"{}"}, outline)
    assert bytes(edited) == b'{"stream_options":{},' + body[1:].replace(b"acme/fast", b"gpt-x")


@pytest.mark.parametrize("name", ["model", "metadata"])
def test_half_of_a_surrogate_pair_in_a_member_that_we_read_is_named(name: str) -> None:
    with pytest.raises(MalformedRequestError, match=name):
        read_short(b'{"%b":"\\ud800"}' % name.encode())


@pytest.mark.parametrize("body", [b'{"a":"\\ud800"', b'{"a":"\\ud800",}', b'["\\ud800"]', b'{"a":"\\ud8"}', b"\\ud800"])
def test_other_faults_are_refused_all_the_same(body: bytes) -> None:
    with pytest.raises(MalformedRequestError):
        read_short(body)
    assert orjson.loads(b'"\\ud83d\\ude00"') == "😀"


NUMBERS = [b"1e400", b"-1E+999", b"9" * 400, b"1" * 309 + b".5", b"[1e400,0.1,-0.0,1e5,12345678901234567890]"]


@pytest.mark.parametrize(("number", "filler"), [*product(NUMBERS, [b"", b"x" * SHORT_BODY_BYTES, b"\\ud800"])])
async def test_number_beyond_a_double_passes_unchanged(number: bytes, filler: bytes) -> None:
    body = b'{"model":"acme/fast","messages":[{"role":"user","content":"1e400 %b"}],"x":%b,"n":1}' % (filler, number)
    json, outline = await read_request(body)
    assert (json["model"], json["n"]) == ("acme/fast", 1)
    edited = edit_members(body, json, {"model": b'"gpt-x"', "stream_options": b"{}"}, outline)
    assert bytes(edited) == b'{"stream_options":{},' + body[1:].replace(b"acme/fast", b"gpt-x")


def test_other_numbers_beside_one_beyond_a_double_are_read_as_ever() -> None:
    numbers = (
        b"[0.10,-0.0,1e5,-9223372036854775808,18446744073709551615,18446744073709551616,1e-999,0.70000000000000001]"
    )
    json, _ = read_short(b'{"a":%b,"b":1e400}' % numbers)
    assert repr(json["a"]) == repr(orjson.loads(numbers))


@pytest.mark.parametrize("value", [b"1e400", b'{"a":1e400}', b'{"a":[{"b":-1e999}]}'])
def test_number_beyond_a_double_in_metadata_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedRequestError, match="metadata"):
        read_short(b'{"metadata":%b}' % value)


@pytest.mark.parametrize(
    "body", [b'{"a":1e400', b'{"a":1e400,"b":NaN}', b"[1e400]", b"1e400", b'{"a":1e400,}', b'{"a":01e400}']
)
def test_other_faults_beside_such_a_number_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedRequestError, match="valid JSON"):
        read_short(body)
