"""The HTTP server over TLS: the tests of the plain one once more, then handshakes, renewal and farewells."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from proxy.edges.http.http_limits import HttpLimits
from tests.contracts.http import test_http_server as plain
from tests.fakes import front as fronts
from tests.fakes.front import Front, listening
from tests.fakes.pair_files import LOCALHOST, PairFiles
from tests.waiting import PATIENCE_S, eventually

REQUEST = plain.REQUEST
BOTH_LOOPS = True
front = plain.front
impatient_front = plain.impatient_front
OF_PLAIN_SOCKETS = frozenset(
    {
        "test_drain_serves_a_connection_in_the_accept_queue",
        "test_drain_serves_a_connection_whose_handshake_has_begun",
        "test_drain_does_not_reset_a_request_that_crosses_its_fin",
    }
)
"""These write plain HTTP to a socket of their own; the tests below do the same over TLS."""
globals().update(
    {name: one for name, one in vars(plain).items() if name.startswith("test_") and name not in OF_PLAIN_SOCKETS}
)


@pytest.fixture(autouse=True)
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PairFiles:
    files = PairFiles(tmp_path).issue()
    monkeypatch.setattr(fronts, "pair_of_all", files)
    return files


@pytest.fixture
async def served() -> AsyncIterator[Front]:
    async with listening() as one:
        yield one


class Peer:
    """A client that chooses every byte, also those of TLS. What is not sent yet is in `outgoing`."""

    def __init__(self, served: Front) -> None:
        assert served.tls is not None
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.tls = served.tls.wrap_bio(self.incoming, self.outgoing, server_hostname=LOCALHOST)
        self.sock = socket.create_connection(("127.0.0.1", served.port))
        self.sock.setblocking(False)

    async def send(self) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, self.outgoing.read())

    async def receive(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            data = await asyncio.get_running_loop().sock_recv(self.sock, 65_536)
        self.incoming.write(data)
        return data

    def begin(self) -> None:
        """Put the first message of a handshake into `outgoing`."""
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.do_handshake()

    async def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
                await self.send()
                return
            except ssl.SSLWantReadError:
                await self.send()
                assert await self.receive()

    async def call(self, handler: plain.HeldHandler) -> None:
        """Shake hands, and send a request that the handler begins to serve."""
        await self.shake_hands()
        self.tls.write(REQUEST)
        await self.send()
        await handler.entered.wait()

    async def ask(self) -> bytes:
        """The answer to a request, as far as it comes at once."""
        self.tls.write(REQUEST)
        await self.send()
        while True:
            try:
                return self.tls.read(65_536)
            except ssl.SSLWantReadError:
                assert await self.receive(), "closed before an answer"


@pytest.fixture
def peer(served: Front) -> Iterator[Peer]:
    one = Peer(served)
    yield one
    one.sock.close()


def handshakes_of(served: Front) -> int:
    tls = served.server._tls
    assert tls is not None
    return len(tls.handshakes)


async def test_new_connections_have_the_new_certificate_and_kept_ones_go_on(served: Front, pair: PairFiles) -> None:
    callers = [await served.caller() for _ in range(3)]
    tls = served.server._tls
    assert tls is not None
    before = pair.cert_file.read_bytes()
    pair.issue()
    tls.context = pair.read().context()
    for one in callers:
        one.send(REQUEST)
        assert (await one.answer())[0] == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        await served.caller()
    served.tls = pair.client_context()
    fresh = await served.caller()
    fresh.send(REQUEST)
    assert (await fresh.answer())[0] == 200
    assert pair.cert_file.read_bytes() != before


async def test_only_http_1_1_is_agreed_on(served: Front) -> None:
    assert served.tls is not None
    served.tls.set_alpn_protocols(["h2", "http/1.1"])
    caller = await served.caller()
    assert caller.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_both_versions_serve_and_end_with_a_farewell(served: Front, version: ssl.TLSVersion) -> None:
    assert served.tls is not None
    served.tls.minimum_version = served.tls.maximum_version = version
    peer = Peer(served)
    with peer.sock:
        await peer.shake_hands()
        assert peer.tls.version() == version.name.replace("v1_", "v1.")
        assert (await peer.ask()).startswith(b"HTTP/1.1 200 ")
        peer.tls.write(REQUEST.replace(b"Host", b"Connection: close\r\nHost"))
        await peer.send()
        while await peer.receive():
            pass
        answer = peer.tls.read(65_536)
        assert b"connection: close" in answer
        assert peer.tls.read(65_536) == b"", "the server says that the stream is complete"


async def test_plain_http_is_told_to_use_https(served: Front) -> None:
    for request in (REQUEST, b"DELETE / HTTP/1.1\r\nHost: x\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(request)
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"must begin with https://" in answer
        writer.close()


GARBAGE = {
    "record too long": b"\x16\x03\x01\xff\xff" + bytes(9),
    "zeros": bytes(9),
    "application data": b"\x17\x03\x03\x00\x05hello",
}


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_garbage_is_cut_off_without_a_traceback(
    served: Front, garbage: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(GARBAGE[garbage])
    async with asyncio.timeout(PATIENCE_S):
        assert len(await reader.read()) < 10, "an alert at most"
    writer.close()
    await eventually(lambda: not handshakes_of(served))
    assert not any(record.exc_info for record in caplog.records)


async def test_broken_record_ends_a_connection_and_its_call(caplog: pytest.LogCaptureFixture) -> None:
    handler = plain.HeldHandler()
    async with listening(handler) as served:
        peer = Peer(served)
        with peer.sock:
            await peer.call(handler)
            peer.sock.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
            await eventually(lambda: handler.ended == ["cancelled"])
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("size", [0, 1, 40])
async def test_caller_that_leaves_in_its_handshake_leaves_nothing(
    served: Front, peer: Peer, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    peer.begin()
    peer.sock.sendall(peer.outgoing.read(size) if size else b"")
    await eventually(lambda: handshakes_of(served) == 1)
    peer.sock.close()
    await eventually(lambda: not handshakes_of(served))
    assert not caplog.records


async def test_handshake_that_never_ends_is_cut_off(served: Front) -> None:
    tls = served.server._tls
    assert tls is not None
    tls.allowed_s = lambda transport: 0.01
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


async def test_caller_that_does_not_trust_us_is_logged_with_the_remedy(
    served: Front, caplog: pytest.LogCaptureFixture
) -> None:
    served.tls = ssl.create_default_context()
    peer = Peer(served)
    with peer.sock:
        with pytest.raises(ssl.SSLCertVerificationError):
            await peer.shake_hands()
        await peer.send()  # the alert
        await eventually(lambda: "it must trust the certificate in TOLLGATE_TLS_CERT_FILE" in caplog.text)
    assert "127.0.0.1 failed (" in caplog.text


async def test_drain_serves_a_connection_in_its_handshake(served: Front, peer: Peer) -> None:
    peer.begin()
    await peer.send()
    await eventually(lambda: handshakes_of(served) == 1)
    drain = asyncio.create_task(served.server.drain(10))
    await eventually(lambda: served.server.accepting is None)
    await peer.shake_hands()
    answer = await peer.ask()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer
    peer.sock.close()
    await drain


async def test_drain_does_not_reset_a_request_that_crosses_its_farewell() -> None:
    async with listening(options=HttpLimits(drain_idle_s=0.0, drain_linger_s=5.0)) as served:
        peer = Peer(served)
        with peer.sock:
            await peer.shake_hands()
            await eventually(lambda: plain.connections_of(served))
            drain = asyncio.create_task(served.server.drain(5))
            while await peer.receive():
                pass
            assert peer.tls.read(1) == b"", "closed by a farewell"
            for _ in range(3):  # a reset would make the second one fail
                peer.tls.write(REQUEST)
                await peer.send()
                await asyncio.sleep(0)
            assert peer.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        await drain


async def test_farewell_of_a_caller_cancels_its_call() -> None:
    handler = plain.HeldHandler()
    async with listening(handler) as served:
        peer = Peer(served)
        with peer.sock:
            await peer.call(handler)
            with pytest.raises(ssl.SSLWantReadError):
                peer.tls.unwrap()
            await peer.send()
            await eventually(lambda: handler.ended == ["cancelled"])
