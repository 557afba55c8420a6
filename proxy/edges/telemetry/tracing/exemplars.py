"""The calls that exemplify histograms' buckets: the last sampled one of each bucket since counts were last sent."""

from bisect import bisect_left
from typing import Any

from proxy.accounting.request_report import RequestReport
from proxy.edges.telemetry.metrics import DURATION_BOUNDS_S, FIRST_BYTE_BOUNDS_S, OVERHEAD_BOUNDS_S


class Exemplars:
    """The newest call of each bucket. At most one per bucket, so the memory is bounded."""

    def __init__(self) -> None:
        self._exemplars: dict[tuple[str, int], tuple[str, float, float]] = {}

    def note(self, call: RequestReport, trace_id: str) -> None:
        """Remember a sampled call."""
        exemplars = self._exemplars
        at_s = call.ended_at_ms / 1000
        exemplars["duration", bisect_left(DURATION_BOUNDS_S, call.duration_s)] = (trace_id, call.duration_s, at_s)
        exemplars["overhead", bisect_left(OVERHEAD_BOUNDS_S, call.ours_s)] = (trace_id, call.ours_s, at_s)
        if (first_byte_s := call.first_byte_s) is not None:
            exemplars["first_byte", bisect_left(FIRST_BYTE_BOUNDS_S, first_byte_s)] = (trace_id, first_byte_s, at_s)

    def drain(self) -> list[list[Any]]:
        """Return and drop them, as they go over the channel: histogram, bucket, trace id, value, Unix seconds."""
        exemplars = self._exemplars
        self._exemplars = {}
        return [[*key, *value] for key, value in exemplars.items()]
