"""The webhook client on real sockets: it dials only checked addresses and follows no redirect."""

import asyncio
import errno
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from control.edges.webhook_client import WebhookClient
from control.records.webhooks import DeliveryAttempt
from policy.hosts import Address, EgressRules
from tests.fakes.throwaway_ca import ThrowawayCa

NAME = "hooks.example.com"
URL = f"https://{NAME}/in"
TIMEOUT_S = 15.0
OK = b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> ThrowawayCa:
    return ThrowawayCa(tmp_path_factory.mktemp("ca"))


class Receiver:
    """Answers every request with the same bytes, or never. Records the requests."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")
            )
            self.requests.append(head + await reader.readexactly(length))
            if self.answer is None:
                await reader.read()
            else:
                writer.write(self.answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving(context: ssl.SSLContext | None, answer: bytes | None = OK) -> AsyncIterator[Receiver]:
    receiver = Receiver(answer)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=context)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


async def post(receiver: Receiver, ca: ThrowawayCa, url: str = URL, timeout_s: float = TIMEOUT_S) -> DeliveryAttempt:
    client = WebhookClient(EgressRules.parse(f"{NAME}=127.0.0.1:{receiver.port}"), timeout_s, str(ca.ca_file))
    try:
        return await client.post(url, {"webhook-id": "msg_1", "Content-Type": "application/json"}, b'{"a":1}')
    finally:
        await client.close()


async def test_message_is_delivered_over_tls(ca: ThrowawayCa) -> None:
    async with receiving(ca.server_context(NAME)) as receiver:
        attempt = await post(receiver, ca)
    assert (attempt.status_code, attempt.error, attempt.succeeded) == (204, None, True)
    (request,) = receiver.requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /in HTTP/1.1\r\n")
    assert b"webhook-id: msg_1" in head
    assert b"Host: hooks.example.com\r\n" in head
    assert body == b'{"a":1}'


@pytest.mark.parametrize("answer", [b"301 x\r\nLocation: https://127.0.0.1/\r\n", b"307 x\r\nLocation: /in\r\n"])
async def test_redirects_are_not_followed(ca: ThrowawayCa, answer: bytes) -> None:
    async with receiving(ca.server_context(NAME), b"HTTP/1.1 " + answer + b"Content-Length: 0\r\n\r\n") as receiver:
        attempt = await post(receiver, ca)
    assert not attempt.succeeded
    assert len(receiver.requests) == 1


async def test_receivers_body_is_not_recorded_but_its_retry_after_is(ca: ThrowawayCa) -> None:
    answer = b"HTTP/1.1 503 no\r\nRetry-After: 77\r\nContent-Length: 11\r\n\r\nsecret text"
    async with receiving(ca.server_context(NAME), answer) as receiver:
        attempt = await post(receiver, ca)
    assert (attempt.status_code, attempt.error, attempt.retry_after_ms) == (503, "answered 503", 77_000)


async def test_large_response_body_is_not_read(ca: ThrowawayCa) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n" + b"x" * 100_000
    async with receiving(ca.server_context(NAME), answer) as receiver:
        attempt = await post(receiver, ca)
    assert attempt.succeeded


async def test_certificate_of_an_untrusted_authority_is_refused(ca: ThrowawayCa, tmp_path: Path) -> None:
    async with receiving(ThrowawayCa(tmp_path).server_context(NAME)) as receiver:
        attempt = await post(receiver, ca)
    assert (attempt.status_code, attempt.error) == (None, "the TLS handshake failed")
    assert receiver.requests == []


async def test_certificate_for_another_name_is_refused(ca: ThrowawayCa) -> None:
    async with receiving(ca.server_context("other.example.com")) as receiver:
        attempt = await post(receiver, ca)
    assert attempt.error == "the TLS handshake failed"


async def test_receiver_that_never_answers_times_out(ca: ThrowawayCa) -> None:
    async with receiving(ca.server_context(NAME), None) as receiver:
        attempt = await post(receiver, ca, timeout_s=0.3)
    assert (attempt.status_code, attempt.error) == (None, "no answer in time")
    assert attempt.duration_ms >= 290


async def test_refused_connection_is_reported(ca: ThrowawayCa) -> None:
    async with receiving(None) as receiver:
        pass
    assert (await post(receiver, ca)).error == "the connection was refused"


async def test_response_that_is_not_http_is_reported_as_a_broken_connection(ca: ThrowawayCa) -> None:
    async with receiving(ca.server_context(NAME), b"SSH-2.0-OpenSSH\r\n\r\n") as receiver:
        assert (await post(receiver, ca)).error == "the connection broke off"


def resolving(*addresses: str) -> Callable[[str], Awaitable[list[Address]]]:
    async def resolve(host: str) -> list[Address]:
        return [ip_address(address) for address in addresses]

    return resolve


@pytest.mark.parametrize(
    "addresses",
    [("127.0.0.1",), ("8.8.8.8", "10.0.0.1"), ("169.254.169.254",), ("::1",), ("::ffff:127.0.0.1",), ("fd00::1",)],
)
async def test_name_with_one_forbidden_address_is_not_dialled(ca: ThrowawayCa, addresses: tuple[str, ...]) -> None:
    """One forbidden address is enough, at any position in the list."""
    client = WebhookClient(EgressRules(), TIMEOUT_S, str(ca.ca_file), resolving(*addresses))
    attempt = await client.post(URL, {}, b"{}")
    await client.close()
    assert attempt.error == "the name resolves to an address that may not be called"


async def test_name_that_does_not_resolve_is_reported(ca: ThrowawayCa) -> None:
    client = WebhookClient(EgressRules(), TIMEOUT_S, str(ca.ca_file), resolving())
    attempt = await client.post(URL, {}, b"{}")
    await client.close()
    assert attempt.error == "the name does not resolve"


@pytest.mark.parametrize(
    ("shortage", "remedy"),
    [
        (OSError(errno.EMFILE, "x"), "ulimit -n"),
        (OSError(errno.ENOMEM, "x"), "ulimit -v"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
    ],
)
async def test_shortage_of_control_is_no_fault_of_the_receiver(
    ca: ThrowawayCa, shortage: Exception, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def resolve(host: str) -> list[Address]:
        raise shortage

    client = WebhookClient(EgressRules(), TIMEOUT_S, str(ca.ca_file), resolve)
    attempt = await client.post(URL, {}, b"{}")
    await client.close()
    assert attempt.error == "the sender has run out of file descriptors, memory or threads"
    assert remedy in caplog.text


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1/", "http://hooks.example.com/", "https://localhost/", "https://[::1]/"]
)
async def test_stored_url_is_checked_again_before_dialling(ca: ThrowawayCa, url: str) -> None:
    async with receiving(ca.server_context(NAME)) as receiver:
        attempt = await post(receiver, ca, url)
    assert attempt.error == "the URL may not be called"
    assert receiver.requests == []


async def test_proxy_variables_are_ignored(ca: ThrowawayCa, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with receiving(ca.server_context(NAME)) as receiver:
        assert (await post(receiver, ca)).succeeded
