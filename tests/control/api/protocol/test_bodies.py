"""Invalid bodies are always refused with a 4xx that says why (docs/reference/management-api.md#errors)."""

import asyncio
import io
import json
from typing import Any

import pytest

from control.api.protocol import bodies
from control.api.protocol.errors import ProblemError
from tests.control.plane import ControlPlane
from tests.waiting import PATIENCE_S

PATH = "/v1/secrets"
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"{", b"nonsense", b'{"name":}', b"{'name':'x'}", b'{"name":"x","value":NaN}', b'{"value":Infinity}'),
        *(b'{"name":"\xff","value":"x"}', b'{"name":"x","value":"a\nb"}', b'\xef\xbb\xbf{"name":"x","value":"x"}'),
        *(b'{"name":"x","value":1e999}', b'{"n":' + b"9" * 5000 + b"}", b"[" * 100_000, b'{"a":' * 50_000),
        *(b'{"name":"x","value":"x"} {}', b'{"name":"x","value":"x",}', b'{"name":"x","value":"x"}//'),
    ],
)
async def test_a_body_that_is_not_json_is_400(sqlite_plane: ControlPlane, raw: bytes) -> None:
    (await sqlite_plane.post(PATH, data=raw, headers=JSON)).refused(400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "raw",
    [
        *(b"null", b"7", b'"x"', b"[]", b"true", b"{}", b'{"name":"x"}', b'{"name":null,"value":"x"}'),
        *(b'{"name":["x"],"value":"x"}', b'{"name":"x","value":{"a":1}}', b'{"name":"x","value":"x","more":1}'),
        *(
            b'{"name":"x","value":"\\u0000"}',
            b'{"name":"x","value":"\\ud800"}',
            b'{"name":"x","value":"x","\\u0000":1}',
        ),
        *(b'{"name":"x","name":"y","value":"x"}', b'{"name":"x","value":"x","a":{"b":1,"b":2}}'),
        b'{"name":"x","value":' + b"[" * 60 + b"]" * 60 + b"}",
    ],
)
async def test_json_that_violates_the_schema_is_400(plane: ControlPlane, raw: bytes) -> None:
    (await plane.post(PATH, data=raw, headers=JSON)).refused(400, "INVALID_REQUEST")


@pytest.mark.parametrize("value", ["😀", "\u2028", "é", "a\\u0000b", "x" * 65_536])
async def test_unusual_but_legal_text_is_accepted(plane: ControlPlane, value: Any) -> None:
    (await plane.post(PATH, {"name": "x", "value": value})).ok()


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "multipart/form-data; boundary=x", ""])
async def test_another_content_type_is_415(sqlite_plane: ControlPlane, kind: str) -> None:
    headers = {"Content-Type": kind}
    (await sqlite_plane.post(PATH, data=b'{"name":"x","value":"y"}', headers=headers)).refused(
        415, "UNSUPPORTED_MEDIA_TYPE"
    )


async def test_a_charset_in_the_content_type_is_accepted(sqlite_plane: ControlPlane) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    (await sqlite_plane.post(PATH, data=b'{"name":"x","value":"y"}', headers=headers)).ok()


async def test_a_large_body_is_413(sqlite_plane: ControlPlane) -> None:
    body = io.BytesIO(b'{"name": "x", "value": "%s"}' % (b"y" * 1_100_000))
    (await sqlite_plane.post(PATH, data=body, headers=JSON)).refused(413, "REQUEST_ENTITY_TOO_LARGE")


async def test_a_large_body_in_chunks_is_413(sqlite_plane: ControlPlane) -> None:
    async def chunks() -> Any:
        for _ in range(40):
            yield b"y" * 65_536

    (await sqlite_plane.post(PATH, data=chunks(), headers=JSON)).refused(413)


async def test_unknown_query_parameters_are_400(sqlite_plane: ControlPlane) -> None:
    assert (await sqlite_plane.get(f"{PATH}?limits=5")).refused(400)["details"] == [
        {"field": "limits", "message": "unknown field"}
    ]
    (await sqlite_plane.get(f"{PATH}?limit=5&limit=6")).refused(400)
    (await sqlite_plane.get("/v1/gateway/groups?external_entity_id=%00")).refused(400)


@pytest.mark.parametrize("id", ["%00", "a%00b", "%ff", "%ED%A0%80", "..%2f..", "%0a", "x" * 5000, "'", "%25", "{}"])
async def test_ids_that_cannot_exist_are_404(plane: ControlPlane, id: str) -> None:
    for path in ("/v1/gateway/groups/", "/v1/gateway/endpoints/", "/v1/models/", "/v1/api_keys/"):
        (await plane.get(path + id)).refused(404)
    (await plane.delete(f"{PATH}/{id}")).refused(404)


async def raw_exchange(plane: ControlPlane, head: bytes, body: bytes, disconnects: bool = False) -> bytes:
    """Send a POST with these exact bytes; return the raw response."""
    reader, writer = await asyncio.open_connection(plane.client.server.host, plane.client.server.port)
    key = f"Authorization: Bearer {plane.key}\r\n".encode()
    writer.write(b"POST /v1/secrets HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n")
    writer.write(key + head + b"\r\n" + body)
    if disconnects:
        writer.write_eof()
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"Transfer-Encoding: chunked\r\n", b"zz\r\n{}\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"2\r\n{}XX0\r\n\r\n"),
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
        (b"Content-Length: x\r\n", b"{}"),
    ],
)
async def test_a_body_with_malformed_framing_is_400(
    sqlite_plane: ControlPlane, caplog: pytest.LogCaptureFixture, head: bytes, body: bytes
) -> None:
    answer = await raw_exchange(sqlite_plane, head, body)
    assert b" 400 " in answer.partition(b"\r\n")[0], answer
    assert "bug in" not in caplog.text


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
async def test_a_compressed_body_is_415_though_it_is_malformed(
    sqlite_plane: ControlPlane, caplog: pytest.LogCaptureFixture, coding: bytes
) -> None:
    head = b"Content-Encoding: %s\r\nContent-Length: 5\r\n" % coding
    answer = await raw_exchange(sqlite_plane, head, b"\xffnotz")
    assert b" 415 " in answer.partition(b"\r\n")[0], answer
    assert "bug in" not in caplog.text


async def test_a_truncated_body_is_not_a_server_error(
    sqlite_plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    await raw_exchange(sqlite_plane, b"Content-Length: 500\r\n", b'{"name":', disconnects=True)
    (await sqlite_plane.get(PATH)).ok()
    assert "bug in" not in caplog.text
    assert "Error handling" not in caplog.text


MANY = 300_000
HEAD = b'{"name":"x","value":"y","more":'
TOO_MUCH = {
    "empty lists": HEAD + b"[" + b"[]," * MANY + b"1]}",
    "empty objects": HEAD + b"[" + b"{}," * MANY + b"1]}",
    "numbers": HEAD + b"[" + b"1," * MANY + b"1]}",
    "texts": HEAD + b"[" + b'"",' * MANY + b"1]}",
    "texts that end in a backslash": HEAD + b"[" + rb'"\\",' * (MANY // 2) + b"1]}",
    "open lists": b"[" * MANY,
    "open objects": b'{"a":' * (MANY // 2),
    "members": b"{" + b",".join(b'"%d":1' % n for n in range(60_000)) + b"}",
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(json, "loads", lambda text, **_more: parsed.append(text))
    with pytest.raises(ProblemError, match=f"more than {bodies.MAX_VALUES} values"):
        bodies.parse_json(TOO_MUCH[name])
    assert parsed == []


@pytest.mark.parametrize("name", TOO_MUCH)
async def test_a_body_of_too_many_values_is_400(sqlite_plane: ControlPlane, name: str) -> None:
    body = (await sqlite_plane.post(PATH, data=io.BytesIO(TOO_MUCH[name]), headers=JSON)).refused(
        400, "INVALID_REQUEST"
    )
    assert f"more than {bodies.MAX_VALUES} values" in body["error"]


async def test_an_object_of_too_many_members_is_400_and_names_one(sqlite_plane: ControlPlane) -> None:
    most = {"name": "x", "value": "y"} | {f"m{n}": n for n in range(bodies.MAX_MEMBERS - 2)}
    assert (await sqlite_plane.post(PATH, most)).refused(400)["details"][0]["message"] == "unknown field"
    body = (await sqlite_plane.post(PATH, most | {"last": 1})).refused(400)
    assert body["details"] == [{"field": "last", "message": "one member too many"}]


async def test_the_error_for_deep_nesting_names_the_bound(sqlite_plane: ControlPlane) -> None:
    body = (await sqlite_plane.post(PATH, data=HEAD + b"[" * 40 + b"]" * 40 + b"}", headers=JSON)).refused(400)
    assert f"more than {bodies.MAX_NESTING} levels" in body["error"]


@pytest.mark.parametrize("text", [",[{" * 21_000, '\\",[' * 16_000, "\\\\,," * 16_000])
async def test_commas_and_brackets_within_text_do_not_count(sqlite_plane: ControlPlane, text: str) -> None:
    raw = b'{"name":"x","value":"%s"}' % text.encode()
    (await sqlite_plane.post(PATH, data=raw, headers=JSON)).ok()


async def test_a_number_beyond_a_float_is_400(sqlite_plane: ControlPlane) -> None:
    body = (await sqlite_plane.post(PATH, data=b'{"name":"x","value":1e999}', headers=JSON)).refused(
        400, "INVALID_REQUEST"
    )
    assert body["error"] == "The body is not valid JSON"


async def test_a_number_of_very_many_digits_is_400_and_text_of_them_is_not(sqlite_plane: ControlPlane) -> None:
    digits = b"7" * (bodies.MAX_DIGITS + 1)
    body = (await sqlite_plane.post(PATH, data=HEAD + digits + b"}", headers=JSON)).refused(400, "INVALID_REQUEST")
    assert f"more than {bodies.MAX_DIGITS} digits" in body["error"]
    (await sqlite_plane.post(PATH, data=b'{"name":"x","value":"%s"}' % digits, headers=JSON)).ok()
