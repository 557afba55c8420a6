"""The channel between supervisor and worker, over a real socketpair."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from proxy.edges.process import channel as module
from proxy.edges.process.channel import Channel, Message, SupervisorLink
from proxy.edges.process.supervisor.worker_processes import ASYNC_WORKER, SlotCallbacks, WorkerSlot
from tests.waiting import PATIENCE_S, eventually


class Supervisor:
    """The other end: records the messages it received."""

    def __init__(self) -> None:
        self.received: list[Message] = []
        self.loss = asyncio.Event()
        self.channel = Channel(self.received.append, self.loss.set)

    def answer(self, ok: bool) -> None:
        """Answer the last question."""
        numbers = [message["number"] for message in self.received if message["is"] == "confirm"]
        self.channel.send({"is": "confirmed", "number": numbers[-1], "ok": ok})

    async def until(self, kind: str, count: int = 1) -> None:
        await eventually(lambda: sum(message["is"] == kind for message in self.received) >= count)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Supervisor, SupervisorLink, asyncio.Event]]:
    ours, theirs = socket.socketpair()
    supervisor = Supervisor()
    closed = asyncio.Event()
    link = SupervisorLink(closed.set)
    await supervisor.channel.open(ours)
    await link.open(theirs)
    try:
        yield supervisor, link, closed
    finally:
        link.close()
        supervisor.channel.close()
        await asyncio.sleep(0)


async def test_message_split_into_single_bytes_is_reassembled() -> None:
    received: list[Message] = []
    channel = Channel(received.append, lambda: None)
    for byte in b'{"is":"counts","counts":{"a":1}}\n{"is":"serving"}\n':
        channel.data_received(bytes([byte]))
    assert received == [{"is": "counts", "counts": {"a": 1}}, {"is": "serving"}]


class CountingTransport(asyncio.Transport):
    """Records each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.writes.append(b"closed")


async def test_messages_of_one_tick_are_one_write() -> None:
    channel = Channel(lambda message: None, lambda: None)
    transport = CountingTransport()
    channel.connection_made(transport)
    for number in range(3):
        channel.send({"number": number})
    await asyncio.sleep(0)
    channel.send({"number": 3})
    channel.close()
    lines = [b'{"number":%d}\n' % number for number in range(4)]
    assert transport.writes == [b"".join(lines[:3]), lines[3], b"closed"]


async def test_message_that_may_wait_leaves_with_the_next_one() -> None:
    channel = Channel(lambda message: None, lambda: None)
    transport = CountingTransport()
    channel.connection_made(transport)
    channel.send({"number": 0}, within_s=60)
    await asyncio.sleep(0.01)
    assert transport.writes == []
    channel.send({"number": 1})
    await asyncio.sleep(0)
    assert transport.writes == [b'{"number":0}\n{"number":1}\n']
    channel.send({"number": 2}, within_s=0.01)
    await eventually(lambda: transport.writes[1:] == [b'{"number":2}\n'])


async def test_simultaneous_confirms_share_one_question() -> None:
    async with connected() as (supervisor, link, _):
        confirms = [asyncio.create_task(link.confirm()) for _ in range(10)]
        await supervisor.until("confirm")
        supervisor.answer(True)
        assert all(await asyncio.gather(*confirms))
        assert supervisor.received == [{"is": "confirm", "number": 1}]
        again = asyncio.create_task(link.confirm())
        await supervisor.until("confirm", 2)
        supervisor.answer(False)
        assert await again is False


async def test_number_of_waiting_confirms_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    async with connected() as (supervisor, link, _):
        confirms = [asyncio.create_task(link.confirm()) for _ in range(10)]
        await supervisor.until("confirm")
        supervisor.answer(True)
        assert sum(await asyncio.gather(*confirms)) == 3
        again = asyncio.create_task(link.confirm())  # no confirm is waiting any more
        await supervisor.until("confirm", 2)
        supervisor.answer(True)
        assert await again


async def test_unknown_keys_of_other_forms_do_not_crowd_out_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 4)
    async with connected() as (supervisor, link, _):
        others = [asyncio.create_task(link.confirm(may_be_ours=False)) for _ in range(100)]
        await supervisor.until("confirm")
        ours = [asyncio.create_task(link.confirm()) for _ in range(4)]
        await supervisor.until("confirm", 2)
        for number in (1, 2):
            supervisor.channel.send({"is": "confirmed", "number": number, "ok": True})
        assert all(await asyncio.gather(*ours))
        assert sum(await asyncio.gather(*others)) == 2


async def test_place_for_an_unknown_key_of_another_form_is_always_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 1)
    async with connected() as (supervisor, link, _):
        confirm = asyncio.create_task(link.confirm(may_be_ours=False))
        await supervisor.until("confirm")
        supervisor.answer(True)
        assert await confirm


async def test_confirm_is_false_when_the_supervisor_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONFIRM_TIMEOUT_S", 0.01)
    async with connected() as (_, link, _closed):
        assert await link.confirm() is False


async def test_confirm_during_a_sent_question_waits_for_the_next_one() -> None:
    """The refresh under way may have read control before the key was created."""
    async with connected() as (supervisor, link, _):
        early = asyncio.create_task(link.confirm())
        await supervisor.until("confirm")
        late = [asyncio.create_task(link.confirm()) for _ in range(3)]
        await asyncio.sleep(0)
        supervisor.answer(False)
        assert await early is False
        await supervisor.until("confirm", 2)
        assert not any(task.done() for task in late)
        supervisor.answer(True)
        assert all(await asyncio.gather(*late))
        assert [message["number"] for message in supervisor.received] == [1, 2]


async def test_second_question_is_sent_before_the_first_is_answered() -> None:
    """The supervisor may serve both by the refresh that it is about to begin."""
    async with connected() as (supervisor, link, _):
        early = asyncio.create_task(link.confirm())
        await supervisor.until("confirm")
        late = asyncio.create_task(link.confirm())
        await supervisor.until("confirm", 2)
        supervisor.channel.send({"is": "confirmed", "number": 2, "ok": True})
        assert await late is True
        assert not early.done()
        supervisor.channel.send({"is": "confirmed", "number": 1, "ok": False})
        assert await early is False


async def test_confirms_cause_at_most_one_question_per_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_GAP_S", 0.2)
    async with connected() as (supervisor, link, _):
        began = time.monotonic()
        confirms = []
        for _ in range(50):
            confirms.append(asyncio.create_task(link.confirm()))
            await asyncio.sleep(0.002)
        await supervisor.until("confirm", 2)
        passed_s = time.monotonic() - began
        questions = [message["number"] for message in supervisor.received]
        assert len(questions) <= 2 + passed_s / 0.2
        for number in (*questions, questions[-1] + 1):
            supervisor.channel.send({"is": "confirmed", "number": number, "ok": True})
        for task in confirms:
            task.cancel()
        await asyncio.wait(confirms)


async def test_late_answer_does_not_confirm_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONFIRM_TIMEOUT_S", 0.01)
    async with connected() as (supervisor, link, _):
        assert await link.confirm() is False
        await supervisor.until("confirm")
        monkeypatch.setattr(module, "CONFIRM_TIMEOUT_S", 60)
        again = asyncio.create_task(link.confirm())
        await supervisor.until("confirm", 2)
        supervisor.channel.send({"is": "confirmed", "number": 1, "ok": False})
        supervisor.answer(True)
        assert await again is True


async def test_cancelled_confirm_does_not_cancel_the_others() -> None:
    async with connected() as (supervisor, link, _):
        leaver = asyncio.create_task(link.confirm())
        stayer = asyncio.create_task(link.confirm())
        await supervisor.until("confirm")
        leaver.cancel()
        supervisor.answer(True)
        assert await stayer is True


async def test_counts_are_sent_before_the_flush_is_answered() -> None:
    async with connected() as (supervisor, link, _):
        link.flush = lambda: link.counted({"calls": []})
        link.health = lambda: {"redis": False}
        supervisor.channel.send({"is": "flush"})
        await supervisor.until("flushed")
        assert [message["is"] for message in supervisor.received] == ["counts", "flushed"]
        assert supervisor.received[-1]["health"] == {"redis": False}


async def test_last_message_about_spend_limits_waits_for_who_takes_it() -> None:
    async with connected() as (supervisor, link, _):
        messages: list[Message] = []
        for number in ("1", "2"):
            supervisor.channel.send({"is": "spend", "waiting": {"key": number}})
        supervisor.channel.send({"is": "flush"})
        await supervisor.until("flushed")
        link.on_spend(messages.append)
        assert [message["waiting"] for message in messages] == [{"key": "2"}]
        supervisor.channel.send({"is": "spend", "waiting": {}})
        await eventually(lambda: len(messages) == 2)
        assert messages[1]["waiting"] == {}


async def test_without_a_message_about_spend_limits_nothing_is_taken() -> None:
    async with connected() as (_, link, _):
        messages: list[Message] = []
        link.on_spend(messages.append)
        assert messages == []


async def test_slot_reports_settlements_only_while_its_worker_answers() -> None:
    """Segments are deleted by this answer, so silence must not count as an earlier answer."""

    async def nothing() -> None: ...

    async def never() -> bool:
        return False

    ours, theirs = socket.socketpair()
    callbacks = SlotCallbacks(lambda *_: None, lambda *_: None, never, nothing, lambda *_: None)
    slot = WorkerSlot(0, ASYNC_WORKER, {}, callbacks)
    assert await slot.settled() == 0
    slot._channel = Channel(slot._on_message, lambda: None)
    link = SupervisorLink(lambda: None)
    await slot._channel.open(ours)
    await link.open(theirs)
    link.health = lambda: {"settled": 7}
    link.serving()
    async with asyncio.timeout(PATIENCE_S):
        while await slot.settled() != 7:
            await asyncio.sleep(0.001)
    slot._serving = False  # as when its process has ended
    assert await slot.settled() == 0
    link.close()
    slot._channel.close()
    await asyncio.sleep(0)


async def test_damage_is_reported_once_and_not_for_every_request() -> None:
    async with connected() as (supervisor, link, _):
        for _ in range(100):
            link.report_damage()
        link.serving()
        await supervisor.until("serving")
        assert [message["is"] for message in supervisor.received] == ["damage", "serving"]


async def test_each_end_notices_that_the_other_has_closed() -> None:
    async with connected() as (supervisor, link, closed):
        supervisor.channel.close()
        await asyncio.wait_for(closed.wait(), PATIENCE_S)
        link.serving()  # no receiver, and no error
        await asyncio.wait_for(supervisor.loss.wait(), PATIENCE_S)
