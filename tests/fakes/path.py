"""The pipeline on in-memory parts, for tests of the pipeline and the server. `PathRig()` serves KEY and SLUG."""

from dataclasses import dataclass, field, replace
from time import monotonic, time

from proxy.accounting.output_estimates import OutputEstimates
from proxy.callers.address_ranges import AddressRanges
from proxy.capacity.worker_capacity import CapacityLimits
from proxy.dialects.middle.sealing import SealKeys
from proxy.dialects.registry import Dialects
from proxy.edges.process.replica_requests import WaitingTimes
from proxy.http_rules.model_paths import model_of_host
from proxy.parts import DispatchSettings, Parts, UpstreamClient
from proxy.pipeline import Pipeline
from tests.fakes.counters import FakeCounters
from tests.fakes.directory import FakeDirectory, ready_directory
from tests.fakes.journal import FakeJournal
from tests.fakes.meters import FakeMeters
from tests.fakes.replicas import FakeReplicas
from tests.fakes.spend import FakeSpend
from tests.fakes.upstream_client import FakeUpstream
from tests.fakes.wire import FakeIncoming, FakeOutgoing
from tests.inference_document import Answer, inference_document

VENDOR_B = "https://vendor-b.test"
SETTINGS = DispatchSettings({"VENDOR_B": VENDOR_B, "VENDOR_A": "https://vendor-a.test"})
SEAL_KEYS = SealKeys((bytes(32),), SETTINGS.base_urls)


def now_ms() -> int:
    return int(time() * 1000)


@dataclass
class PathRig:
    """One worker's parts. All that do I/O are fakes."""

    directory: FakeDirectory = field(default_factory=ready_directory)
    counters: FakeCounters = field(default_factory=lambda: FakeCounters(now_ms))
    spend: FakeSpend = field(default_factory=lambda: FakeSpend(now_ms))
    journal: FakeJournal = field(default_factory=FakeJournal)
    upstream: FakeUpstream = field(default_factory=FakeUpstream)
    meters: FakeMeters = field(default_factory=FakeMeters)
    settings: DispatchSettings = SETTINGS
    waiting_times: WaitingTimes = field(default_factory=WaitingTimes)
    max_body_bytes: int = 100_000
    capacity: CapacityLimits = field(default_factory=CapacityLimits)
    model_host_suffix: str = ""
    seal_keys: SealKeys = field(default_factory=lambda: SEAL_KEYS)
    clock_ms: int = field(default_factory=now_ms)
    """The time by which keys expire."""
    trusted_proxies: AddressRanges = field(default_factory=AddressRanges)

    def __post_init__(self) -> None:
        self.replicas = FakeReplicas(self.directory, self.waiting_times)
        self.directory.on_models = self.replicas.changed
        self.pipeline = Pipeline(self.parts())

    def parts(self) -> Parts:
        return Parts(
            directory=self.directory,
            counters=self.counters,
            spend=self.spend,
            journal=self.journal,
            upstream=self.upstream,
            replicas=self.replicas,
            dialects=Dialects(monotonic, self.seal_keys),
            output_estimates=OutputEstimates(),
            meters=self.meters,
            dispatch=self.settings,
            max_body_bytes=self.max_body_bytes,
            capacity=self.capacity,
            model_host_suffix=self.model_host_suffix,
            now_ms=lambda: self.clock_ms,
            trusted_proxies=self.trusted_proxies,
        )

    def over(self, upstream: UpstreamClient) -> None:
        """Use another upstream client, such as the real one."""
        self.pipeline = Pipeline(replace(self.parts(), upstream=upstream))

    def rebuilt(self, **changes: object) -> "PathRig":
        return replace(self, **changes)  # type: ignore[arg-type] # a test's own field names

    async def serve(self, incoming: FakeIncoming) -> FakeOutgoing:
        outgoing = FakeOutgoing()
        await self.pipeline.handle(incoming, outgoing)
        if outgoing.status and not outgoing.is_gone:
            self._check_documented(incoming, outgoing)
        return outgoing

    def check_settled(self) -> None:
        """Assert that nothing is left open in journal, counters and gauges."""
        self.spend.check_settled()
        assert sorted(call.event_key for call in self.journal.closed) == sorted(
            call.event_key for call in self.journal.opened
        )
        assert self.meters.level == 0

    def _check_documented(self, incoming: FakeIncoming, outgoing: FakeOutgoing) -> None:
        """Assert that the inference document has this answer. The server itself adds `x-content-type-options`."""
        is_on_host = self.model_host_suffix and model_of_host(incoming.header("host"), self.model_host_suffix)
        target = f"/models/m{incoming.request_target}" if is_on_host else incoming.request_target
        fields = [*outgoing.headers, ("x-content-type-options", "nosniff")]
        body = b"".join(outgoing.pieces)
        inference_document().check(Answer(incoming.method, target, outgoing.status, fields, body, passes=True))
