"""A Tollgate without limits, billing, metrics and journal: what they add to a call is measured against it.

`python -m bench.programs.bare PORT UPSTREAM_PORT DATA_DIR` assembles the production parts as `proxy/worker/app.py`
does: server, pipeline, upstream client, and the replica of a running `tollgate up` at DATA_DIR, so the same key and
slug work. Counters admit everything, the journal writes nothing, nothing is billed or counted, and there is no
supervisor. The rest is as in the product: usage is read, the answer's `model` is the slug, the access log has its line.
"""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Sequence
from itertools import repeat
from pathlib import Path
from time import monotonic

import uvloop

from control.edges.process.data_directory import DataDirectory
from policy.hosts import EgressRules
from policy.limits.alerts import ReachedLimit
from policy.limits.effective import Plan
from policy.limits.settlement import Estimate, Reservation
from policy.sealing import parse_keys
from policy.spend.effective import SpendPlan
from proxy.accounting.journaled_call import JournaledCall
from proxy.accounting.output_estimates import OutputEstimates
from proxy.accounting.request_report import RequestReport
from proxy.accounting.reservations import LimitDecision, LimitHit, Taken
from proxy.accounting.spend_taken import SpendHit, SpendTaken, SpendUnavailable
from proxy.capacity.worker_capacity import Capacity
from proxy.dialects.middle.sealing import SealKeys
from proxy.dialects.registry import Dialects
from proxy.edges.http.server import HttpServer
from proxy.edges.policy.directory import SnapshotDirectory
from proxy.edges.policy.replica_file import ReplicaStamp, stamp_path
from proxy.edges.policy.supervisor.replica_listing import NoConfirmer
from proxy.edges.process.channel import SupervisorLink
from proxy.edges.process.replica_requests import ReplicaRequests, WaitingTimes
from proxy.edges.telemetry.access_log import AccessLogWriter
from proxy.edges.telemetry.metrics import COUNT_AFTER_CALLS
from proxy.edges.upstream.client import HttpUpstream
from proxy.edges.upstream.egress import Egress
from proxy.exchange import RequestContext
from proxy.parts import DispatchSettings, Parts
from proxy.pipeline import Pipeline
from proxy.stages.settle import Settle
from proxy.worker.memory import collect_garbage_less_often, keep_room

CONNECT_TIMEOUT_S = 5.0
_TAKEN = Taken()


class NoCounters:
    """Admits everything."""

    async def ask(self, plan: Plan, estimate: Estimate, further: Sequence[Plan] = ()) -> Taken:
        return _TAKEN

    def abandon(self, take: Awaitable[Taken | LimitHit]) -> None:
        pass

    numbers = repeat(1)

    def settle(self, reservation: Reservation, *, number: int, actual_tokens: int) -> None:
        pass

    def give_back(self, take: Taken) -> None:
        pass


class NoSpend:
    """Is never asked: no spend limit binds."""

    def ask(
        self, plan: SpendPlan, event_key: str, picos: int, least: int = 0
    ) -> Awaitable[SpendTaken | SpendHit | SpendUnavailable]:
        raise AssertionError

    def abandon(self, question: Awaitable[SpendTaken | SpendHit | SpendUnavailable]) -> None:
        pass

    def end(self, take: SpendTaken, picos: int) -> None:
        pass

    def give_back(self, take: SpendTaken) -> None:
        pass


class NoJournal:
    """Writes nothing."""

    def open(self, record: bytes) -> JournaledCall:
        call = JournaledCall()
        call.is_written = True
        return call

    def answered(self, record: bytes) -> None:
        pass

    def progress(self, records: Sequence[bytes]) -> None:
        pass

    def close(self, call: JournaledCall, record: bytes) -> None:
        pass


class NoMeters:
    """Counts nothing. Has calls logged in batches, as the product does."""

    def __init__(self, access_log: AccessLogWriter) -> None:
        self._access_log = access_log
        self._ended: list[RequestReport] = []

    def usage_not_reported(self, reason: str) -> None:
        pass

    def reservation_overrun(self, tokens: int) -> None:
        pass

    def spend_overrun(self) -> None:
        pass

    def limit_decision(self, decision: LimitDecision) -> None:
        pass

    def limit_reached(self, limit: ReachedLimit) -> None:
        pass

    def finished(self, call: RequestReport) -> None:
        self._ended.append(call)
        if len(self._ended) >= COUNT_AFTER_CALLS:
            self._access_log.write(self._ended)
            self._ended = []

    def watch(self, capacity: Capacity) -> None:
        pass


class SettleNothing(Settle):
    """Ends calls without journal, settlement and metrics."""

    def journal_end(self, context: RequestContext) -> None:
        pass


class BarePipeline(Pipeline):
    """The pipeline with `settle` reduced to nothing."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._settle = SettleNothing(parts)


async def serve(listener: socket.socket, upstream_port: int, data: Path) -> None:
    """Serve until killed."""
    directory = DataDirectory(data)
    keys = parse_keys(directory.make_secret_key().read_text())
    stamp = ReplicaStamp(stamp_path(directory.replica))
    access_log = AccessLogWriter(sys.stderr.fileno())
    access_log.start()
    parts = Parts(
        directory=SnapshotDirectory(directory.replica, keys, stamp, NoConfirmer()),
        counters=NoCounters(),
        spend=NoSpend(),
        journal=NoJournal(),
        replicas=ReplicaRequests(SupervisorLink(lambda: None), WaitingTimes()),  # never asked
        upstream=HttpUpstream(Egress(EgressRules(), CONNECT_TIMEOUT_S)),
        dialects=Dialects(monotonic, SealKeys(keys, {})),
        output_estimates=OutputEstimates(),
        meters=NoMeters(access_log),
        dispatch=DispatchSettings({"VENDOR_B": f"http://127.0.0.1:{upstream_port}"}),
    )
    await HttpServer(BarePipeline(parts).handle).start(listener)
    collect_garbage_less_often()
    keep_room()
    await asyncio.Event().wait()


def main(arguments: list[str]) -> None:
    port, upstream_port, data = arguments
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=1024)
    listener.setblocking(False)
    uvloop.run(serve(listener, int(upstream_port), Path(data)))


if __name__ == "__main__":
    main(sys.argv[1:])
