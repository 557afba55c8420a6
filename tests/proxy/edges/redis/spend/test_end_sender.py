"""Ends of calls are sent in batches until they are confirmed; servers' errors, outages and a full queue."""

import logging

import hiredis
import pytest

from proxy.edges.redis.scripts import Script
from proxy.edges.redis.spend import end_sender
from proxy.edges.redis.spend.end_sender import BATCH_MOST, EndSender
from proxy.edges.redis.spend.scripts import call_arguments, given_back_arguments
from tests.proxy.edges.redis.scripted_nodes import ScriptedNodes
from tests.waiting import eventually

KEY = "tg:{root|group}"
SCRIPT = Script(b"return 1", b"a" * 40)


class World:
    """A sender, and a Redis that the test answers by hand."""

    def __init__(self) -> None:
        self.nodes = ScriptedNodes()
        self.client = self.nodes.client
        self.client.available = self.client.connected = True  # type: ignore[attr-defined]
        self.sender = EndSender(self.nodes, SCRIPT, self.nodes.schedule_flush)

    def send(self, *numbers: int, key: str = KEY) -> None:
        for number in numbers:
            self.sender.add(key, call_arguments(f"{number:026}", number))
        self.sender.send_ready()

    @property
    def sent(self) -> list[list[bytes]]:
        """The commands that are not answered: command, script, number of keys, key, arguments."""
        reader = hiredis.Reader()
        for command in self.client.commands:
            reader.feed(command.encoded)
        return [reader.gets() for _ in self.client.commands]

    def keys_sent(self) -> list[int]:
        return [int(name[1:]) for name in self.sent[0][4::2]]


@pytest.fixture
async def world() -> World:
    return World()


async def test_ends_of_a_tick_are_one_batch(world: World) -> None:
    world.sender.add(KEY, call_arguments("1" * 26, 7))
    world.sender.add(KEY, given_back_arguments("2" * 26))
    assert world.nodes.flushes == 1
    world.sender.send_ready()
    amount = (0).to_bytes(8, "little") + (7).to_bytes(8, "little")
    head = [b"EVAL", SCRIPT.text, b"1", KEY.encode()]
    assert world.sent == [[*head, b"p" + b"1" * 26, amount, b"p" + b"2" * 26, b""]]
    world.client.reply(2)
    assert world.sender.pending == 0


async def test_a_server_that_has_the_script_gets_its_digest(world: World) -> None:
    world.send(1)
    world.client.reply(1)
    world.send(2)
    assert world.sent[0][:2] == [b"EVALSHA", SCRIPT.sha]
    world.client.reply(hiredis.ReplyError("NOSCRIPT No matching script."))
    assert world.sent[0][:2] == [b"EVAL", SCRIPT.text]
    assert world.keys_sent() == [2]


async def test_one_batch_of_a_tree_is_in_flight(world: World) -> None:
    world.send(1)
    world.send(2)
    world.send(3, key="tg:{other|group}")
    assert len(world.sent) == 2
    world.client.reply(1)
    world.client.reply(1)
    world.sender.send_ready()
    assert world.keys_sent() == [2]


async def test_a_large_batch_is_split(world: World) -> None:
    world.send(*range(BATCH_MOST + 5))
    assert world.keys_sent() == list(range(BATCH_MOST))
    world.client.reply(BATCH_MOST)
    world.sender.send_ready()
    assert world.keys_sent() == list(range(BATCH_MOST, BATCH_MOST + 5))


async def test_an_end_without_a_reply_is_sent_again(world: World) -> None:
    world.send(1)
    world.client.reply(None)
    world.send(2)
    assert world.sent == []
    await eventually(lambda: len(world.client.commands) == 1)
    assert world.keys_sent() == [1, 2]


async def test_nothing_is_sent_to_a_server_that_is_away(world: World) -> None:
    world.send(1)
    world.client.reply(None)
    world.client.connected = False  # type: ignore[attr-defined]
    world.sender.retry()
    assert world.sent == []
    world.client.connected = True  # type: ignore[attr-defined]
    world.sender.retry()
    assert world.keys_sent() == [1]


async def test_a_batch_follows_its_key(world: World) -> None:
    world.send(1)
    world.client.reply(hiredis.ReplyError("MOVED 1 host:1"))
    assert world.sent == []
    world.nodes.other_client.reply(1)
    assert world.sender.pending == 0


async def test_an_error_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.send(1)
    for _ in range(2):
        world.client.reply(hiredis.ReplyError("NOPERM no"))
        world.sender.retry()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert world.sender.pending == 1


async def test_ends_are_bounded(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_sender, "PENDING_MOST", 3)
    world.send(1, 2, 3, 4, 5)
    assert (world.sender.pending, len(caplog.records)) == (3, 1)
    world.client.reply(3)
    world.send(6)
    assert world.sender.pending == 1


async def test_trees_without_ends_are_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_sender, "_TREES_KEPT", 2)
    world.sender = EndSender(world.nodes, SCRIPT, world.nodes.schedule_flush)
    for number in range(5):
        world.send(number, key=f"tg:{{{number}|group}}")
        world.client.reply(1)
    assert len(world.sender._trees) <= 2


async def test_close_waits_for_confirmation_or_its_end(world: World) -> None:
    world.send(1)
    await world.sender.close(0.01)
    assert world.sender.pending == 1


async def test_reservations_are_put_behind_ends_and_never_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_sender, "PENDING_MOST", 1)
    world.send(1)
    is_confirmed = world.sender.put(KEY, [call_arguments(f"{number:026}", number) for number in (2, 3)])
    is_nothing_confirmed = world.sender.put("tg:{other|group}", [])
    assert is_nothing_confirmed()
    world.client.reply(1)
    assert not is_confirmed()
    world.sender.send_ready()
    assert world.keys_sent() == [2, 3]
    world.send(4)
    assert not is_confirmed()
    world.client.reply(2)
    assert is_confirmed()
