"""A whole worker on canned wires, for counting: `python -m tests.proxy.budget.canned_worker CALLS`, of each caller.

Everything between the wires is the product's and works for real: policy replica, counters with three levels of groups,
journal on disk, metrics, access log. Two numbers of calls and their difference give the cost of one.
"""

import asyncio
import gc
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from time import monotonic, time
from typing import Any

from policy.credentials import KeyKind
from policy.endpoints import Target
from policy.keys.settings import KeySettings
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from policy.prices import Price, token_prices
from policy.sealing import seal
from policy.snapshot import EndpointRow, KeyRow, PriceRow, Row, SecretRow, WorkspaceRow, group_to_wire
from policy.spend.balances import Balance, balance_to_wire
from policy.spend.limits import SpendLimit, spend_limit_to_wire
from proxy.accounting.output_estimates import OutputEstimates
from proxy.dialects.middle.sealing import SealKeys
from proxy.dialects.registry import Dialects
from proxy.edges.http.connection import Connection
from proxy.edges.http.server import HttpServer
from proxy.edges.journal.writer import JournalWriter
from proxy.edges.policy.directory import SnapshotDirectory
from proxy.edges.policy.replica_file import ReplicaStamp, stamp_path
from proxy.edges.policy.supervisor.policy_replica import PolicyReplica
from proxy.edges.policy.supervisor.replica_listing import NoConfirmer
from proxy.edges.process.channel import SupervisorLink
from proxy.edges.process.replica_requests import ReplicaRequests, WaitingTimes
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from proxy.edges.redis.scripts import Scripts
from proxy.edges.redis.spend.scripts import SpendScripts
from proxy.edges.telemetry.access_log import AccessLogWriter
from proxy.edges.telemetry.gen_ai_counts import GenAiCounts
from proxy.edges.telemetry.listed_calls import ListedCalls
from proxy.edges.telemetry.metrics import WorkerMetrics
from proxy.edges.upstream.client import HttpUpstream
from proxy.parts import DispatchSettings, Parts
from proxy.pipeline import Pipeline
from proxy.records.supervisor.policy_replica import ReplicaVersion
from tests.proxy.budget.canned_wires import CannedCaller, CannedEgress, CannedLoop

CALLERS = 8
KEY = "tg_" + "k" * 40
SLUG = "acme/chat"
CREDENTIAL = "sk-" + "a1B2" * 12
"""The target's, as long as vendors make them."""
_SEALING_KEY = b"k" * 32
_INCARNATION = "canned-worker-00"
_PROMPT = b"What does the quick brown fox do? What does the quick"


def request_of(prompt: bytes = _PROMPT) -> bytes:
    """A chat completion."""
    body = b'{"model":"%b","messages":[{"role":"user","content":"%b"}],"max_tokens":64}' % (SLUG.encode(), prompt)
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nauthorization: Bearer %b\r\n"
        b"content-type: application/json\r\naccept: application/json\r\nuser-agent: OpenAI/Python 2.8.1\r\n"
        b"content-length: %d\r\n\r\n%b" % (KEY.encode(), len(body), body)
    )


REQUEST = request_of()
_ANSWER_BODY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1764000000,"model":"gpt","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"It jumps over the lazy dog, as it always does."},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":8,"total_tokens":20,'
    b'"prompt_tokens_details":{"cached_tokens":4,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,'
    b'"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}},"service_tier":"default"}'
)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_ANSWER_BODY),
    _ANSWER_BODY,
)


class NoSupervisor:
    """Takes the counts, as the channel to the supervisor does."""

    congested = True
    """A congested channel sends no counts. Else they would be sent every 0.1 s, however few calls were made by then."""

    def counted(self, counts: dict[str, Any]) -> None:
        raise AssertionError("the last counts are sent to a channel that has room")


def secret_row(value: str) -> Row:
    """The credential of the endpoint's target."""
    return Row(
        "secret", "sec_1", 1, SecretRow("sec_1", "ws_1", seal((_SEALING_KEY,), "sec_1", value, bytes(12))).to_wire()
    )


def endpoint_row(target: Target) -> Row:
    """The slug, with this target."""
    return Row("endpoint", SLUG, 1, EndpointRow(SLUG, "ep_1", "ws_1", target).to_wire())


def price_row(*, input: str, output: str, tiers: Mapping[str, str]) -> Row:
    """A price of the slug, with these service tiers."""
    factors = tuple((tier, Decimal(factor)) for tier, factor in tiers.items())
    price = Price(SLUG, 0, "EUR", token_prices(Decimal(input), Decimal(output)), service_tiers=factors)
    return Row("price", SLUG, 1, PriceRow(SLUG, "ws_1", (price,)).to_wire())


def key_row(group_id: str = "grp_2", settings: KeySettings | None = None) -> Row:
    """The callers' key, of this group."""
    key = KeyRow(sha256(KEY.encode()).hexdigest(), KEY[:12], KeyKind.FEDERATED, "ws_1", group_id, settings)
    return Row("key", key.digest, 1, key.to_wire())


def group_row(level: int, entity: str, *spend_limits: SpendLimit, balance: Balance | None = None) -> Row:
    """One of three groups, each below the one before, with four limits. The lowest one has the callers' key."""
    limits = (Limit(LimitType.REQUEST, Unit.MINUTE, 10**9), Limit(LimitType.TOKEN, Unit.MINUTE, 10**12))
    day = (Limit(LimitType.REQUEST, Unit.DAY, 10**9), Limit(LimitType.TOKEN, Unit.DAY, 10**12))
    above = f"grp_{level - 1}" if level else None
    group = Group(f"grp_{level}", "ws_1", above, entity, Enforcement.CASCADING, (SlugLimits(SLUG, limits, day),))
    spending: dict[str, Any] = {}
    if spend_limits:
        spending["spend_limits"] = list(map(spend_limit_to_wire, spend_limits))
    if balance is not None:
        spending["balance"] = balance_to_wire(balance)
    return Row("group", group.id, 1, group_to_wire(group) | spending)


def rows() -> Iterator[Row]:
    """A workspace, an endpoint of VENDOR_B, and a key of the lowest of three groups."""
    yield Row("workspace", "ws_1", 1, WorkspaceRow("ws_1", "active", "pro", True).to_wire())
    yield secret_row(CREDENTIAL)
    yield endpoint_row(Target("VENDOR_B", secret_id="sec_1", target_model="gpt"))
    for level in range(3):
        yield group_row(level, f"customer-{level}")
    yield key_row()


def take_reply(admitted: int) -> bytes:
    """take.lua's reply: admitted now, tightest limits of the first level, a minute to reset."""
    now_ms = int(time() * 1000)
    values = (now_ms, admitted, 0, 0, 0, 0, 1, 10**9 - 1, 60_000, 2, 10**12 - 90, 60_000, now_ms)
    return b"*%d\r\n%b" % (len(values), b"".join(b":%d\r\n" % value for value in values))


class CannedWorker:
    """One worker's parts, put together as `proxy/worker/app.py` does. `serve` answers calls."""

    def __init__(
        self, loop: CannedLoop, stack: ExitStack, scratch: Path, *reads: bytes, gen_ai: GenAiCounts | None = None
    ) -> None:
        self.loop = loop
        self.now_ms = int(time() * 1000)
        """The time by which keys expire."""
        path = scratch / "replica.db"
        self._replica = PolicyReplica(path)
        stack.callback(self._replica.close)
        self.publish(*rows(), reset=True)
        self.egress = CannedEgress(*reads)
        access_log = AccessLogWriter(os.open(os.devnull, os.O_WRONLY))
        access_log.start()
        stack.callback(access_log.close)
        self.meters = WorkerMetrics(NoSupervisor(), access_log.write, ListedCalls(100), gen_ai)
        stack.callback(self.meters.close)
        self.journal_directory = scratch / "journal"
        self.journal = JournalWriter(self.journal_directory, "w1")
        self.journal.start()
        stack.callback(self.journal.stop)
        patient = RedisClientOptions(deadline_s=60)  # counting takes fifty times as long
        options = CountersOptions(
            on_round_trip=self.meters.redis_round_trip, client=patient, before_settling=self.journal.write_now
        )
        self.counters = RedisCounters("redis://canned:6379", _INCARNATION, options=options)
        self.counters.spend.may_reserve = True
        stamp = ReplicaStamp(stamp_path(path))
        parts = Parts(
            directory=SnapshotDirectory(path, (_SEALING_KEY,), stamp, NoConfirmer()),
            counters=self.counters,
            spend=self.counters.spend,
            journal=self.journal,
            upstream=HttpUpstream(self.egress),  # type: ignore[arg-type]  # it only connects
            replicas=ReplicaRequests(SupervisorLink(lambda: None), WaitingTimes()),
            dialects=Dialects(monotonic, SealKeys((_SEALING_KEY,), {})),
            output_estimates=OutputEstimates(),
            meters=self.meters,
            dispatch=DispatchSettings({"VENDOR_B": "http://127.0.0.1:9999"}),
            now_ms=lambda: self.now_ms,
        )
        self.server = HttpServer(Pipeline(parts).handle)
        self.server.loop = loop

    def publish(self, *changed: Row, reset: bool = False) -> None:
        """Change policy, as the supervisor does."""
        update = self._replica.begin_update(reset=reset)
        update.add(changed)
        update.commit(ReplicaVersion("epoch", self._replica.version.revision + 1))

    async def serve(self, calls: int, request: bytes = REQUEST, ending: bytes = b"") -> list[CannedCaller]:
        """Answer `calls` calls of each of eight callers."""
        buffer = self.server.buffer
        server = self.server
        callers = [CannedCaller(buffer, Connection(server), request, calls, ending) for _ in range(CALLERS)]
        for caller in callers:
            await caller.end
        return callers


@contextmanager
def canned_worker(*reads: bytes, gen_ai: GenAiCounts | None = None) -> Iterator[tuple[asyncio.Runner, CannedWorker]]:
    """A worker whose upstream answers with `reads`, and the runner to run it with. `gen_ai`: as with OTLP metrics."""
    with tempfile.TemporaryDirectory(prefix="tollgate-budget-") as scratch, ExitStack() as stack:
        loop = CannedLoop(Scripts.load().take, SpendScripts.load().take, take_reply)
        runner = stack.enter_context(asyncio.Runner(loop_factory=lambda: loop))

        async def build() -> CannedWorker:
            worker = CannedWorker(loop, stack, Path(scratch), *(reads or (ANSWER,)), gen_ai=gen_ai)
            await worker.counters.start()
            gc.collect()
            gc.freeze()
            gc.set_threshold(10_000, 100, 20)  # as the worker does
            return worker

        yield runner, runner.run(build())


def main(arguments: list[str]) -> None:
    """Serve calls, and count nothing. A second number says how often the prompt is repeated."""
    request = request_of((_PROMPT + b" ") * int(arguments[1])) if arguments[1:] else REQUEST
    with canned_worker() as (runner, worker):
        runner.run(worker.serve(int(arguments[0]), request))


if __name__ == "__main__":
    main(sys.argv[1:])
