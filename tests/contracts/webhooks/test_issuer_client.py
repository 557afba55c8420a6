"""The client of identity providers on real sockets: bounded in time and size, checked addresses, no redirects."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
from aiohttp import web

from control.edges.issuer_client import IssuerClient
from control.records.identity.documents import Document
from policy.hosts import Address, EgressRules
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.issuer import Issuer


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> ThrowawayCa:
    return ThrowawayCa(tmp_path_factory.mktemp("ca"))


@asynccontextmanager
async def running(ca: ThrowawayCa) -> AsyncIterator[Issuer]:
    issuer = Issuer()
    await issuer.start(ca)
    yield issuer
    await issuer.stop()


async def get(issuer: Issuer, ca_file: Path | None, **more: float) -> Document:
    client = IssuerClient(EgressRules.parse(issuer.link), None if ca_file is None else str(ca_file), **more)  # type: ignore[arg-type]
    try:
        return await client.get(issuer.jwks_url)
    finally:
        await client.close()


async def test_document_is_got_over_tls(ca: ThrowawayCa) -> None:
    async with running(ca) as issuer:
        document = await get(issuer, ca.ca_file)
    assert document.error == ""
    assert b'"kid": "first"' in document.body


async def test_issuer_of_an_unknown_authority_is_refused(ca: ThrowawayCa) -> None:
    async with running(ca) as issuer:
        assert (await get(issuer, None)).error == "the TLS handshake failed"
        assert issuer.requests == []


async def test_issuer_that_never_answers_is_given_up() -> None:
    ended = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    issuer = Issuer()
    server = await asyncio.start_server(never, "127.0.0.1", issuer.port)
    document = await get(issuer, None, timeout_s=0.1)
    await ended.wait()
    server.close()
    assert document == Document(error="no answer in time")


async def test_redirect_is_not_followed(ca: ThrowawayCa) -> None:
    async with running(ca) as issuer:
        issuer.answers["/keys"] = web.Response(status=301, headers={"Location": f"{issuer.url}/elsewhere"})
        document = await get(issuer, ca.ca_file)
        assert (document, issuer.requests) == (Document(error="answered 301"), ["/keys"])


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1"])
async def test_name_of_a_private_address_is_not_dialled(address: str) -> None:
    async def resolve(_host: str) -> list[Address]:
        return [ip_address(address)]

    client = IssuerClient(EgressRules(), resolve=resolve)
    document = await client.get("https://login.example.com/keys")
    await client.close()
    assert document == Document(error="the name resolves to an address that may not be called")


@pytest.mark.parametrize("url", ["http://login.example.com/keys", "https://127.0.0.1/keys", "file:///etc/passwd", ""])
async def test_url_outside_the_rules_is_not_called(url: str) -> None:
    client = IssuerClient(EgressRules())
    assert await client.get(url) == Document(error="the URL may not be called")
    await client.close()
