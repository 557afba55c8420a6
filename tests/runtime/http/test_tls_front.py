"""Control's listener over TLS: applications see https, files are sent, and handshakes take no known caller's place."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from runtime.http.server import FrontLimits, FrontRunner
from runtime.http.tls_layer import TlsListener
from tests.fakes.pair_files import LOCALHOST, PairFiles
from tests.waiting import PATIENCE_S, eventually


@pytest.fixture
def pair(tmp_path: Path) -> PairFiles:
    return PairFiles(tmp_path).issue()


def application(directory: Path) -> web.Application:
    async def shown(request: web.Request) -> web.Response:
        answer = web.Response(text=f"{request.scheme}://{request.host} {await request.text()}")
        answer.set_cookie("session", "1", secure=request.scheme == "https")
        return answer

    async def file(_: web.Request) -> web.FileResponse:
        return web.FileResponse(directory / "large")

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/", shown)
    app.router.add_get("/file", file)
    return app


@asynccontextmanager
async def listening(pair: PairFiles, limits: FrontLimits) -> AsyncIterator[tuple[TlsListener, int]]:
    tls = TlsListener(pair.read().context(), "code")
    runner = FrontRunner(application(pair.directory), limits, tls, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield tls, runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def test_application_sees_https_and_answers_large_bodies(pair: PairFiles) -> None:
    async with listening(pair, FrontLimits()) as (_, port):
        connector = aiohttp.TCPConnector(ssl=pair.client_context())
        async with aiohttp.ClientSession(f"https://{LOCALHOST}:{port}", connector=connector) as session:
            for size in (2, 1_000_000):
                async with session.post("/", data="x" * size) as answer:
                    assert await answer.text() == f"https://{LOCALHOST}:{port} {'x' * size}"
                    assert answer.cookies["session"]["secure"]


async def test_file_is_sent_whole(pair: PairFiles) -> None:
    content = bytes(range(256)) * 20_000
    (pair.directory / "large").write_bytes(content)
    async with listening(pair, FrontLimits()) as (_, port):
        connector = aiohttp.TCPConnector(ssl=pair.client_context())
        session = aiohttp.ClientSession(f"https://{LOCALHOST}:{port}", connector=connector)
        async with session, session.get("/file") as answer:
            assert await answer.read() == content


async def test_handshakes_that_never_end_make_room_for_callers(pair: PairFiles) -> None:
    async with listening(pair, FrontLimits(max_connections=8)) as (tls, port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        await eventually(lambda: len(tls.handshakes) == 8)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=pair.client_context(), server_hostname=LOCALHOST
        )
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        assert len(tls.handshakes) == 7, "the oldest one made room"
        for _, one in silent:
            one.transport.abort()
        writer.close()
        await eventually(lambda: not tls.handshakes)


async def test_plain_http_is_answered_in_the_words_of_the_api(pair: PairFiles) -> None:
    async with listening(pair, FrontLimits()) as (_, port):
        session = aiohttp.ClientSession()
        async with session, session.post(f"http://127.0.0.1:{port}/") as answer:
            assert answer.status == 400
            assert (await answer.json())["code"] == "INVALID_REQUEST"


def test_context_has_pythons_own_versions_and_ciphers(pair: PairFiles) -> None:
    ours = pair.read().context()
    pythons = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    assert (ours.minimum_version, ours.maximum_version) == (pythons.minimum_version, pythons.maximum_version)
    assert ours.get_ciphers() == pythons.get_ciphers()
