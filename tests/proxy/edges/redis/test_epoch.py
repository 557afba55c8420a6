"""A server's epoch is known of the connection that stands, and read again in time."""

import hiredis
import pytest

from proxy.edges.redis.nodes import epoch
from proxy.edges.redis.nodes.epoch import ServerEpoch
from tests.proxy.edges.redis.scripted_nodes import ScriptedClient

EPOCH = "0123456789abcdef" * 2 + "01234567"
INFO = f"# Replication\r\nrole:master\r\nmaster_replid:{EPOCH}\r\nmaster_replid2:{'0' * 40}\r\n".encode()


@pytest.fixture
def client() -> ScriptedClient:
    return connected(ScriptedClient(), 1)


@pytest.fixture
def server(client: ScriptedClient) -> ServerEpoch:
    return ServerEpoch(client)  # type: ignore[arg-type]  # a client by shape


def connected(client: ScriptedClient, number: int) -> ScriptedClient:
    client.connected = True  # type: ignore[attr-defined]
    client.connections = number  # type: ignore[attr-defined]
    return client


async def test_it_is_read(client: ScriptedClient, server: ServerEpoch) -> None:
    assert (server.text, server.is_fresh) == ("", False)
    answers = []
    server.read(lambda: answers.append(server.text))
    assert server.is_fresh, "it is on its way"
    client.reply(INFO)
    assert answers == [EPOCH] == [server.text]


@pytest.mark.parametrize("reply", [None, hiredis.ReplyError("NOPERM no"), b"role:master\r\n"])
async def test_a_server_that_does_not_tell_is_asked_again(
    client: ScriptedClient, server: ServerEpoch, reply: object
) -> None:
    server.read()
    client.reply(INFO)
    server.read()
    assert server.text == EPOCH
    client.reply(reply)
    assert (server.text, server.is_fresh) == ("", False)


async def test_another_connection_may_be_another_server(client: ScriptedClient, server: ServerEpoch) -> None:
    server.read()
    client.reply(INFO)
    connected(client, 2)
    assert (server.text, server.is_fresh) == ("", False)
    server.read()
    assert server.text == ""
    client.reply(INFO)
    assert (server.text, server.is_fresh) == (EPOCH, True)
    client.connected = False  # type: ignore[attr-defined]
    assert not server.is_fresh


async def test_it_is_read_again_after_a_refusal_and_after_a_while(
    client: ScriptedClient, server: ServerEpoch, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.read()
    client.reply(INFO)
    monkeypatch.setattr(epoch, "FRESH_S", 0.0)
    assert (server.text, server.is_fresh) == (EPOCH, False)
    monkeypatch.undo()
    server.forget()
    assert (server.text, server.is_fresh) == ("", False)
