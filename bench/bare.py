"""The same call without limits, metering, metrics and journal: what a goal of issue "Fast" compares the product with.

`python -m bench.bare PORT UPSTREAM_PORT DATA_DIR` puts the production parts together as `proxy/app.py` does: listener,
pipeline, upstream client, and the replica of a running `tollgate up` at DATA_DIR, so the very same key and slug work.
Counters grant all, the journal writes nothing, answers are passed on unread, and nothing is booked, counted or logged.
The access log, which the goal does not name, is out as well: that makes the comparison harder for us, not easier.
"""

import asyncio
import socket
import sys
from pathlib import Path

import uvloop

from control.edges.data_directory import DataDirectory
from policy.billing import Tokens
from policy.effective import Plan
from policy.endpoints import Target
from policy.hosts import EgressRules
from policy.sealing import parse_keys
from policy.settlement import Settlement
from proxy.app import keep_room, spare_the_collector
from proxy.capacity import Capacity
from proxy.dialects import registry
from proxy.dialects.seam import Asked
from proxy.dialects.splice import Json
from proxy.edges.catalogue import Nobody
from proxy.edges.egress import Egress
from proxy.edges.listener import Listener
from proxy.edges.replica import Stamp, stamp_path
from proxy.edges.snapshots import SnapshotDirectory
from proxy.edges.upstream import HttpUpstream
from proxy.exchange import AnswerReader, Call, Grant, Headers, Received
from proxy.expectations import Expectations
from proxy.pipeline import Parts, Pipeline
from proxy.recovery import CloseCall, OpenCall
from proxy.stages.dispatch import DispatchSettings
from proxy.stages.settle import Finished, Settle

CONNECT_TIMEOUT_S = 5.0
_GRANT = Grant()


class NoCounters:
    """Grants everything."""

    async def take(self, plan: Plan, estimate_tokens: int, tier: Plan | None = None) -> Grant:
        return _GRANT

    def next_number(self, key: str) -> int:
        return 1

    def settle(self, settlement: Settlement) -> None:
        pass


class NoJournal:
    """Writes nothing down."""

    def open(self, call: OpenCall) -> None:
        pass

    def answered(self, event_key: str) -> None:
        pass

    def close(self, call: CloseCall) -> None:
        pass


class NoMeters:
    """Counts nothing."""

    def limit_decision(self, outcome: str, type: str, unit: str) -> None:
        pass

    def finished(self, call: Finished) -> None:
        pass

    def watch(self, capacity: Capacity) -> None:
        pass


class NoLog:
    """Says nothing."""

    def record(self, call: Finished) -> None:
        pass


class Unread:
    """An answer that is passed on as it comes, its last bytes with its end."""

    failed = False
    tokens: Tokens | None = None

    def __init__(self, *, streams: bool) -> None:
        self.streams = streams
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        if self.streams:
            return data
        self._held += data
        return b""

    def end(self) -> bytes:
        return self._held


class UnreadAnswers:
    """Requests are shaped as always; answers are not looked into."""

    def check(self, request: Received, target: Target) -> Json | None:
        return registry.check(request, target)

    def ask(self, request: Received, target: Target, credential: str | None, translation: Json | None) -> Asked:
        return registry.ask(request, target, credential, translation)

    def reader(self, request: Received, target: Target, status: int, headers: Headers) -> AnswerReader:
        return Unread(streams=request.streaming)


class NoBooks(Settle):
    """Ends no call: there are no books."""

    def __init__(self) -> None:
        pass

    def book(self, call: Call) -> None:
        pass

    def tell(self, call: Call) -> None:
        pass


class BarePipeline(Pipeline):
    """The path up to its last step."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._settle = NoBooks()


async def serve(listener: socket.socket, upstream_port: int, data: Path) -> None:
    """Serve until killed."""
    directory = DataDirectory(data)
    keys, stamp = parse_keys(directory.secret_key()), Stamp(stamp_path(directory.replica))
    parts = Parts(
        directory=SnapshotDirectory(directory.replica, keys, stamp, Nobody()),
        counters=NoCounters(),
        journal=NoJournal(),
        upstream=HttpUpstream(Egress(EgressRules(), CONNECT_TIMEOUT_S)),
        dialects=UnreadAnswers(),
        expectations=Expectations(),
        meters=NoMeters(),
        access_log=NoLog(),
        dispatch=DispatchSettings({"VENDOR_B": f"http://127.0.0.1:{upstream_port}"}),
    )
    await Listener(BarePipeline(parts).handle).start(listener)
    spare_the_collector()
    keep_room()
    await asyncio.Event().wait()


def main(arguments: list[str]) -> None:
    port, upstream_port, data = arguments
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=1024)
    listener.setblocking(False)
    uvloop.run(serve(listener, int(upstream_port), Path(data)))


if __name__ == "__main__":
    main(sys.argv[1:])
