"""The channel between the supervisor and one worker: JSON lines over a socketpair.

The worker reports that it serves, what it counted and where it may hold places, and asks to have unknown keys
confirmed, for keys of identity providers and for replicas. The supervisor answers, and says that calls may reserve by
HARD spend limits, which trees to reserve in again, and that there is another certificate. Must not carry a secret.
"""

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import orjson

Message = dict[str, Any]

CONFIRM_TIMEOUT_S = 5.0
"""The longest time for which an unknown key waits for control before it is answered 503."""
ASK_GAP_S = 0.01
"""Time between two questions of one worker. Unknown keys that arrive within it share a question."""
MAX_WAITING = 1000
"""The most calls with unknown keys that wait at once. A flood of them must not crowd out calls with known keys."""
CONFIRM_KEYS_TIMEOUT_S = 15.0
"""The same for a token of an unknown key: control asks the identity provider, in two steps of 5 s."""
WAITING_FOR_KEYS = 64
"""The most calls that wait at once for the keys of one identity provider, and of all of them an eighth of the places:
anybody can make up a token of an unknown key."""
KEYS_PART = 8
REGISTERED_PART = 2
"""The part of these places (half as many, beside them) for keys that could only be registered ones: anybody's text."""
MAX_BACKLOG_BYTES = 4_000_000
"""The worker keeps its counts while more than this waits to be sent."""
_DAMAGE_REPORT_GAP_S = 10.0
log = logging.getLogger(__name__)


class Channel(asyncio.Protocol):
    """One end of a channel. `on_message` gets each message; `on_lost` is called once when the other end has closed."""

    def __init__(self, on_message: Callable[[Message], None], on_lost: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._partial_line = b""
        self._unsent: list[bytes] = []
        self._flushes_soon = False

    async def open(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it

    def data_received(self, data: bytes) -> None:
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            self._on_message(orjson.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost()

    @property
    def congested(self) -> bool:
        return self._transport is not None and self._transport.get_write_buffer_size() > MAX_BACKLOG_BYTES

    def send(self, message: Message, within_s: float = 0.0) -> None:
        """Send without waiting: one write for all messages of a tick. Does nothing once the other end has closed.

        `within_s`: how long the message may be held back, to leave with another one.
        """
        if self._transport is None:
            return
        self._unsent.append(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
        if self._flushes_soon:
            return
        loop = asyncio.get_running_loop()
        if not within_s:
            self._flushes_soon = True
            loop.call_soon(self.flush)
        elif len(self._unsent) == 1:
            loop.call_later(within_s, self.flush)

    def close(self) -> None:
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def flush(self) -> None:
        """Send what waits for the end of this tick now."""
        unsent = b"".join(self._unsent)
        self._flushes_soon = False
        self._unsent.clear()
        if unsent and self._transport is not None:
            self._transport.write(unsent)


class SupervisorLink:
    """The worker's end: confirmations for the directory, counts for the metrics, replicas for platform calls."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._channel = Channel(self._received, on_lost)
        self._unsent_question: asyncio.Future[bool] | None = None  # not sent yet
        self._unanswered: dict[int, asyncio.Future[bool]] = {}  # by number, not answered yet
        self._sent_number = 0
        self._sent_at_s = float("-inf")
        self._key_questions: dict[str, asyncio.Future[bool]] = {}  # by identity provider, not answered yet
        self._key_callers: Counter[str] = Counter()
        """The callers that wait for keys, by identity provider."""
        self._callers = {True: 0, False: 0}
        """The waiting callers: those whose key may be ours, and the others."""
        self.max_waiting = MAX_WAITING
        self._damage_reported_at_s = float("-inf")
        self.flush: Callable[[], None] = lambda: None
        """Sends the counts. Called when the supervisor wants them now, for a scrape."""
        self.health: Callable[[], Message] = dict
        """Returns this worker's state for `/readyz`. Called with `flush`."""
        self.on_replicas: Callable[[Message], None] = lambda message: None
        """Takes each answer about a replica."""
        self.on_certificate: Callable[[], None] = lambda: None
        """Called when the file in memory has another certificate."""
        self._on_spend: Callable[[Message], None] = lambda message: None
        self._spend: Message | None = None

    async def open(self, sock: socket.socket) -> None:
        await self._channel.open(sock)

    def serving(self) -> None:
        self._channel.send({"is": "serving"})

    async def confirm(self, *, may_be_ours: bool = True) -> bool:
        """Return whether control has confirmed the replica after this call. `may_be_ours`: as for `Confirmer`.

        Callers within ASK_GAP_S share a question. A question that is already sent does not count: its answer may be
        older than the key. The supervisor in turn lets questions share refreshes.
        """
        most = self.max_waiting if may_be_ours else max(1, self.max_waiting // REGISTERED_PART)
        if self._callers[may_be_ours] >= most:
            return False
        self._callers[may_be_ours] += 1
        try:
            return await asyncio.shield(self._next_question())
        finally:
            self._callers[may_be_ours] -= 1

    def _next_question(self) -> asyncio.Future[bool]:
        if self._unsent_question is None:
            loop = asyncio.get_running_loop()
            self._unsent_question = loop.create_future()
            loop.call_later(max(0.0, self._sent_at_s + ASK_GAP_S - loop.time()), self._ask, self._unsent_question)
        return self._unsent_question

    def _ask(self, question: asyncio.Future[bool]) -> None:
        loop = asyncio.get_running_loop()
        self._unsent_question = None
        self._sent_at_s = loop.time()
        self._send_question({"is": "confirm"}, question, CONFIRM_TIMEOUT_S)

    async def confirm_keys(self, provider_id: str) -> bool:
        """Return whether control has fetched the provider's keys, now or just before. Callers share a question."""
        callers = self._key_callers
        if callers[provider_id] >= WAITING_FOR_KEYS or callers.total() >= max(1, self.max_waiting // KEYS_PART):
            return False
        callers[provider_id] += 1
        try:
            question = self._key_questions.get(provider_id) or self._ask_for_keys(provider_id)
            return await asyncio.shield(question)
        finally:
            callers[provider_id] -= 1
            if not callers[provider_id]:
                del callers[provider_id]

    def _ask_for_keys(self, provider_id: str) -> asyncio.Future[bool]:
        question: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        question.add_done_callback(lambda _: self._key_questions.pop(provider_id, None))
        self._key_questions[provider_id] = question
        self._send_question({"is": "confirm_keys", "provider": provider_id}, question, CONFIRM_KEYS_TIMEOUT_S)
        return question

    def _send_question(self, message: Message, question: asyncio.Future[bool], timeout_s: float) -> None:
        self._sent_number += 1
        self._unanswered[self._sent_number] = question
        asyncio.get_running_loop().call_later(timeout_s, self._answered, self._sent_number, False)
        self._channel.send({**message, "number": self._sent_number})

    def report_damage(self) -> None:
        now_s = time.monotonic()
        if now_s - self._damage_reported_at_s > _DAMAGE_REPORT_GAP_S:
            self._damage_reported_at_s = now_s
            self._channel.send({"is": "damage"})

    @property
    def congested(self) -> bool:
        return self._channel.congested

    def counted(self, counts: Message) -> None:
        self._channel.send({"is": "counts", "counts": counts})

    def may_hold(self, key: str, groups: Sequence[str]) -> None:
        """Say in which further groups of a hash this worker may have places of calls in flight.

        It is sent at once, before a take: if this worker dies, the supervisor knows what to return.
        """
        self._channel.send({"is": "places", "key": key, "groups": groups, "ended": False})
        self._channel.flush()

    def holds_none(self, key: str, groups: Sequence[str]) -> None:
        """Say in which groups of a hash this worker has no places any more."""
        self._channel.send({"is": "places", "key": key, "groups": groups, "ended": True})

    def send(self, message: Message, within_s: float = 0.0) -> None:
        """Send a message as `Channel.send` does."""
        self._channel.send(message, within_s)

    def close(self) -> None:
        self._channel.close()

    def on_spend(self, take: Callable[[Message], None]) -> None:
        """Have `take` called with the last message about spend limits now, if one has come, and with each later one."""
        self._on_spend = take
        if self._spend is not None:
            take(self._spend)

    def _received(self, message: Message) -> None:
        match message["is"]:
            case "confirmed":
                self._answered(message["number"], message["ok"])
            case "spend":
                self._spend = message
                self._on_spend(message)
            case "flush":
                self.flush()
                self._channel.send({"is": "flushed", "health": self.health()})
            case "replica" | "waits" | "refused" | "woken":
                self.on_replicas(message)
            case "certificate":
                self.on_certificate()

    def _answered(self, number: int, ok: bool) -> None:
        """Resolve a question: answered by the supervisor or timed out. The second of the two finds no question."""
        question = self._unanswered.pop(number, None)
        if question is not None:
            question.set_result(ok)
