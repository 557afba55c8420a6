"""Checks who may call the management API (docs/reference/management-api.md#authentication)."""

import asyncio
import gzip
import logging

import pytest

from tests.control.plane import TOKEN, ControlPlane
from tests.waiting import PATIENCE_S

GROUPS = "/v1/gateway/groups"
BOMB = gzip.compress(bytes(5_000_000))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic dXNlcjpwdw=="},
        {"Authorization": "tg_000000000000.x"},
    ],
)
async def test_no_or_malformed_credentials_are_401(sqlite_plane: ControlPlane, headers: dict[str, str]) -> None:
    async with sqlite_plane.client.get(GROUPS, headers=headers) as answer:
        assert answer.status == 401
        assert await answer.json() == {"error": "Unauthorized", "message": "Unauthorized", "code": "UNAUTHORIZED"}
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("key", ["wrong", "tg_000000000000.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "ü", "x" * 4000])
async def test_an_unknown_key_is_403(sqlite_plane: ControlPlane, key: str) -> None:
    body = (await sqlite_plane.get(GROUPS, key=key)).refused(403, "AUTHENTICATION_FAILED")
    assert key not in str(body)


async def test_the_api_key_scheme_is_accepted_in_any_case(sqlite_plane: ControlPlane) -> None:
    for scheme in ("Api-Key", "bearer", "API-KEY"):
        (await sqlite_plane.get(GROUPS, headers={"Authorization": f"{scheme} {sqlite_plane.key}"})).ok()


async def test_a_known_key_is_accepted_beside_an_unknown_credential(sqlite_plane: ControlPlane) -> None:
    other = (await sqlite_plane.another_workspace())["api_key"]
    for first, second in (
        (sqlite_plane.key, "sk-other"),
        ("sk-other", sqlite_plane.key),
        (sqlite_plane.key, sqlite_plane.key),
    ):
        (await sqlite_plane.get(GROUPS, key=first, headers={"x-api-key": second})).ok()
    (await sqlite_plane.get(GROUPS, key="sk-other", headers={"x-api-key": "sk-another"})).refused(
        403, "AUTHENTICATION_FAILED"
    )
    (await sqlite_plane.get(GROUPS, headers={"x-api-key": other})).refused(400, "AMBIGUOUS_CREDENTIAL")


async def test_two_credentials_in_one_header_are_401(sqlite_plane: ControlPlane) -> None:
    headers = [("Authorization", f"Bearer {sqlite_plane.key}"), ("Authorization", "Bearer other")]
    async with sqlite_plane.client.get(GROUPS, headers=headers) as answer:
        assert answer.status == 401


async def test_gateway_paths_are_403_for_a_workspace_not_onboarded(plane: ControlPlane) -> None:
    key = (await plane.another_workspace(onboarded=False))["api_key"]
    for path in (GROUPS, "/v1/gateway/endpoints", f"{GROUPS}/grp_x/api_keys"):
        (await plane.get(path, key=key)).refused(403, "NOT_ONBOARDED")
    (await plane.get("/v1/secrets", key=key)).ok()
    (await plane.get("/v1/api_keys", key=key)).ok()


async def test_a_federated_key_is_refused_on_the_management_api(plane: ControlPlane) -> None:
    group = await plane.group("g")
    key = (await plane.post(f"{GROUPS}/{group['id']}/api_keys", {})).ok()["api_key"]
    for path in (GROUPS, "/v1/secrets", "/v1/models", "/v1/api_keys"):
        (await plane.get(path, key=key)).refused(403, "FEDERATED_KEY")


async def test_unknown_paths_are_404_and_unknown_methods_405(sqlite_plane: ControlPlane) -> None:
    unknown = (await sqlite_plane.get("/v1/nothing")).refused(404, "NOT_FOUND")
    assert "/v1/openapi.json" in unknown["error"]
    (await sqlite_plane.get("/v1/openapi.json")).ok()
    (await sqlite_plane.get("/")).refused(404)
    answer = await sqlite_plane.put(GROUPS, {})
    assert answer.refused(405, "METHOD_NOT_ALLOWED")["error"] == "this path takes only GET, HEAD, POST"
    assert set(answer.headers["Allow"].split(",")) == {"GET", "HEAD", "POST"}


async def test_internal_paths_require_the_internal_token(sqlite_plane: ControlPlane) -> None:
    path = "/internal/v1/snapshot"
    (await sqlite_plane.get(path)).refused(401)
    (await sqlite_plane.get(path, key="")).refused(401)
    (await sqlite_plane.get(path, headers={"Authorization": "Basic internal-token-of-the-tests"})).refused(401)


async def test_health_needs_no_credentials(sqlite_plane: ControlPlane) -> None:
    for path in ("/healthz", "/readyz", "/v1/openapi.json", "/docs"):
        async with sqlite_plane.client.get(path) as answer:
            assert answer.status == 200


async def test_malformed_http_is_refused_and_not_quoted(
    sqlite_plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection(sqlite_plane.client.server.host, sqlite_plane.client.server.port)
    writer.write(b"GET / HTTP/1.1\r\nAuthorization: Bearer tg_" + b"k" * 9000 + b"\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert b" 400 " in answer.partition(b"\r\n")[0]
    assert b'{"error": ' in answer
    assert b"kkk" not in answer
    assert "kkk" not in caplog.text


PAGES = ("/v1/gateway/groups", "/v1/gateway/endpoints", "/v1/models", "/v1/secrets", "/v1/gateway/groups/grp_x")
OPEN_PAGES = ("/healthz", "/readyz", "/openapi.json", "/metrics", "/nowhere", "/v1/gateway/events")


@pytest.mark.parametrize("path", PAGES + OPEN_PAGES)
async def test_head_returns_the_status_and_length_of_get_without_a_body(sqlite_plane: ControlPlane, path: str) -> None:
    answer = await sqlite_plane.get(path)
    head = await sqlite_plane.call("HEAD", path)
    assert (head.status, head.body or "") == (answer.status, "")
    assert head.headers["Content-Type"] == answer.headers["Content-Type"]
    if path != "/metrics":  # its values change between requests
        assert head.headers["Content-Length"] == answer.headers["Content-Length"]


async def test_head_is_405_where_get_is_not_served(sqlite_plane: ControlPlane) -> None:
    answer = await sqlite_plane.call("HEAD", "/internal/v1/events", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "x-gzip", "gzip, identity", "made-up"])
@pytest.mark.parametrize("authorized", [True, False])
async def test_a_compressed_body_is_415_and_never_decompressed_or_quoted(
    sqlite_plane: ControlPlane, coding: str, authorized: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for body in (b"rubbish tg_quoteme", BOMB):
        key = f"Authorization: Bearer {sqlite_plane.key}\r\n" if authorized else ""
        head = f"POST {GROUPS} HTTP/1.1\r\nHost: x\r\n{key}Content-Type: application/json\r\n"
        head += f"Connection: close\r\nContent-Encoding: {coding}\r\nContent-Length: {len(body)}\r\n\r\n"
        raw = await send_and_read_all(sqlite_plane, head.encode() + body)
        assert raw.startswith(b"HTTP/1.1 415 ")
        assert b'"UNSUPPORTED_ENCODING"' in raw
        assert b"send the body uncompressed" in raw
        assert b"quoteme" not in raw
    assert "quoteme" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_compressed_batch_of_events_is_415(sqlite_plane: ControlPlane) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    async with sqlite_plane.client.post("/internal/v1/events", data=gzip.compress(b"{}"), headers=headers) as answer:
        assert answer.status == 415


async def test_identity_encoding_and_an_encoding_without_a_body_are_accepted(sqlite_plane: ControlPlane) -> None:
    assert (await sqlite_plane.get("/v1/models", headers={"Content-Encoding": "gzip"})).status == 200
    body = b'{"name": "vendor", "value": "sk-upstream"}'
    headers = {"Content-Encoding": "identity", "Content-Type": "application/json"}
    headers["Authorization"] = f"Bearer {sqlite_plane.key}"
    async with sqlite_plane.client.post("/v1/secrets", data=body, headers=headers) as answer:
        assert answer.status == 200


async def test_a_malformed_chunk_is_not_quoted(sqlite_plane: ControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    head = f"POST {GROUPS} HTTP/1.1\r\nHost: x\r\n".encode() + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
    assert (await send_and_read_all(sqlite_plane, head + b"tg_quoteme\r\n")).startswith(b"HTTP/1.1 400 ")
    reader, writer = await asyncio.open_connection(sqlite_plane.client.server.host, sqlite_plane.client.server.port)
    writer.write(head)
    async with asyncio.timeout(PATIENCE_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.write(b"tg_quoteme\r\n")
        raw = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert b"HTTP/1.1 " not in raw, "nobody asked for a second answer"
    assert b"quoteme" not in raw
    assert "quoteme" not in caplog.text
    assert "Traceback" not in caplog.text


async def send_and_read_all(plane: ControlPlane, message: bytes) -> bytes:
    """Send raw bytes; return everything control sends until it closes the connection."""
    reader, writer = await asyncio.open_connection(plane.client.server.host, plane.client.server.port)
    writer.write(message)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    finally:
        writer.close()
