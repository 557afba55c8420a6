"""The customer's receivers leave no connection behind, however late the product notices that they stopped."""

import asyncio
import socket
import ssl
from pathlib import Path

from tests.fakes.throwaway_ca import ThrowawayCa
from tests.journeys.receivers import Receiver
from tests.ports import is_held


async def test_a_receiver_stops_once_its_peer_has_closed_too(tmp_path: Path) -> None:
    ca = ThrowawayCa(tmp_path)
    receiver = Receiver("hook")
    await receiver.start(ca)
    peer = await asyncio.to_thread(_sent, ca, receiver)
    with peer:
        stop = asyncio.create_task(receiver.stop())
        await asyncio.wait({stop}, timeout=0.5)
        assert not stop.done()
        assert is_held(receiver.port)
    await stop
    assert not is_held(receiver.port)
    assert [message.body for message in receiver.messages] == [b"{}"]


def _sent(ca: ThrowawayCa, receiver: Receiver) -> ssl.SSLSocket:
    """A connection that carried one message and is kept."""
    context = ssl.create_default_context(cafile=str(ca.ca_file))
    plain = socket.create_connection(("127.0.0.1", receiver.port))
    peer = context.wrap_socket(plain, server_hostname=receiver.host)
    peer.sendall(b"POST /in HTTP/1.1\r\nhost: hook\r\nwebhook-id: 1\r\ncontent-length: 2\r\n\r\n{}")
    assert peer.recv(1000).startswith(b"HTTP/1.1 200 ")
    return peer
