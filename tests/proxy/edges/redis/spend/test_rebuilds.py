"""Reservations are put again, and a tree is rebuilt only once the server that has them is surely of the epoch."""

import asyncio
from collections.abc import AsyncIterator

import hiredis
import pytest

from policy.spend.effective import SpendPlan
from policy.spend.spend_hash import Reserved, pack_reservation
from proxy.accounting.spend_taken import SpendTaken
from proxy.edges.redis.scripts import Script
from proxy.edges.redis.spend.end_sender import EndSender
from proxy.edges.redis.spend.rebuilds import Rebuilds
from proxy.edges.redis.spend.scripts import given_back_arguments
from tests.contracts.redis.spend_world import INCARNATION, limits, plan_of
from tests.proxy.edges.redis.scripted_nodes import ScriptedNodes
from tests.waiting import eventually, until_still

PLAN = plan_of(("team", limits(day="2")), ("root", ()))
OTHER_PLAN = plan_of(("other", limits(day="2")))
KEY = PLAN.key
EPOCH = "a" * 40
OTHER = "b" * 40


class World:
    """The rebuilds of a worker, and a Redis that the test answers by hand. Batches leave when they are queued."""

    def __init__(self) -> None:
        self.nodes = ScriptedNodes()
        self.client = self.nodes.client
        self.connect(1)
        self.ends = EndSender(self.nodes, Script(b"return 1", b"a" * 40), self._schedule_flush)
        self.open: dict[str, SpendTaken] = {}
        self.rebuilds = Rebuilds(self.nodes, self.ends, INCARNATION, self.open)

    def _schedule_flush(self) -> None:
        asyncio.get_running_loop().call_soon(self.ends.send_ready)

    def connect(self, number: int) -> None:
        self.client.available = self.client.connected = True  # type: ignore[attr-defined]
        self.client.connections = number  # type: ignore[attr-defined]

    def reserve(self, event_key: str, picos: int, plan: SpendPlan = PLAN) -> None:
        self.open[event_key] = SpendTaken(plan=plan, event_key=event_key, picos=picos, is_counted=True)

    async def next_command(self) -> list[bytes]:
        """The oldest command that is not answered: INFO, or a batch of ends."""
        reader = hiredis.Reader()
        reader.feed((await self.client.next_command()).encoded)
        command: list[bytes] = reader.gets()
        return command

    async def tell_epoch(self, epoch: str | None) -> None:
        assert await self.next_command() == [b"INFO", b"replication"]
        reply = f"# Replication\r\nrole:master\r\nmaster_replid:{epoch}\r\nmaster_replid2:{OTHER}\r\n"
        self.client.reply(reply.encode() if epoch else None)

    async def take_puts(self) -> dict[bytes, bytes]:
        """The batch that is on its way, which the test answers."""
        command = await self.next_command()
        assert command[0] in (b"EVAL", b"EVALSHA")
        return dict(zip(command[4::2], command[5::2], strict=True))

    async def confirm_put(self) -> dict[bytes, bytes]:
        """Answer the batch of puts that is on its way, or comes once the epoch is told again."""
        command = await self.next_command()
        while command[0] == b"INFO":
            await self.tell_epoch(EPOCH)
            command = await self.next_command()
        puts = await self.take_puts()
        self.client.reply(1)
        return puts

    async def until_rebuilt(self, expected: dict[str, str]) -> None:
        """Tell the epoch as often as it is asked for."""
        while self.rebuilds.rebuilt != expected:
            await self.tell_epoch(EPOCH)
            await until_still(lambda: self.rebuilds.rebuilt)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    one = World()
    yield one
    await one.rebuilds.close()


async def test_a_tree_is_rebuilt_when_its_reservations_are_confirmed(world: World) -> None:
    world.reserve("one", 5)
    world.reserve("two", 7, plan=OTHER_PLAN)
    world.ends.add(KEY, given_back_arguments("gone"))
    world.rebuilds.start({KEY: f"{EPOCH} nonce"})
    assert await world.take_puts() == {b"pgone": b""}, "on its way before"
    world.client.reply(1)
    await world.tell_epoch(EPOCH)
    reservation = pack_reservation(Reserved(5, INCARNATION, PLAN.groups))
    assert await world.confirm_put() == {b"pone": reservation}
    assert world.rebuilds.rebuilt == {}
    world.reserve("late", 9)  # its reply was on its way when the server lost it
    late = pack_reservation(Reserved(9, INCARNATION, PLAN.groups))
    assert await world.confirm_put() == {b"pone": reservation, b"plate": late}
    await world.until_rebuilt({KEY: f"{EPOCH} nonce"})
    assert world.rebuilds.present_epochs == {KEY: EPOCH}


async def test_nothing_is_put_in_another_epoch(world: World) -> None:
    world.reserve("one", 5)
    world.rebuilds.start({KEY: EPOCH})
    for epoch in (OTHER, None, OTHER):
        await world.tell_epoch(epoch)
    assert world.ends.pending == 0
    await world.tell_epoch(EPOCH)
    await eventually(lambda: world.ends.pending == 1)


async def test_a_server_that_changed_meanwhile_gets_them_again(world: World) -> None:
    world.reserve("one", 5)
    world.rebuilds.start({KEY: EPOCH})
    await world.tell_epoch(EPOCH)
    await world.take_puts()
    world.connect(2)
    world.client.reply(1)
    await world.tell_epoch(EPOCH)
    assert await world.take_puts(), "another server may have confirmed"
    assert world.rebuilds.rebuilt == {}
    world.client.reply(1)
    await world.confirm_put()
    for _ in range(3):
        await world.tell_epoch(OTHER)
    await until_still(lambda: world.rebuilds.rebuilt)
    assert world.rebuilds.rebuilt == {}
    await world.until_rebuilt({KEY: EPOCH})


async def test_a_call_replaces_what_waits(world: World) -> None:
    world.rebuilds.start({KEY: EPOCH, "tg:{other|group}": EPOCH})
    world.rebuilds.start({KEY: OTHER})
    await world.tell_epoch(EPOCH)
    for _ in range(3):
        await world.tell_epoch(OTHER)
    await eventually(lambda: world.rebuilds.rebuilt == {KEY: OTHER})
    task = world.rebuilds._task
    assert task is not None
    await asyncio.wait_for(asyncio.shield(task), 5)
    world.rebuilds.start({})
    assert world.rebuilds.rebuilt == {}
