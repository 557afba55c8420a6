"""Metrics in memory: lists of the reports."""

from dataclasses import dataclass, field

from policy.limits.alerts import ReachedLimit
from proxy.accounting.request_report import RequestReport
from proxy.accounting.reservations import LimitDecision
from proxy.capacity.worker_capacity import Capacity


@dataclass
class FakeMeters:
    calls: list[RequestReport] = field(default_factory=list)
    decisions: list[tuple[str, str, str]] = field(default_factory=list)
    limits_reached: list[ReachedLimit] = field(default_factory=list)
    unreported: list[str] = field(default_factory=list)
    overrun_tokens: int = 0
    spend_overruns: int = 0
    capacity: Capacity | None = None

    @property
    def level(self) -> int:
        """The number of calls in flight."""
        return self.capacity.in_flight if self.capacity is not None else 0

    def watch(self, capacity: Capacity) -> None:
        self.capacity = capacity

    def finished(self, call: RequestReport) -> None:
        self.calls.append(call)

    def limit_decision(self, decision: LimitDecision) -> None:
        self.decisions.append(decision)

    def limit_reached(self, limit: ReachedLimit) -> None:
        self.limits_reached.append(limit)

    def usage_not_reported(self, reason: str) -> None:
        self.unreported.append(reason)

    def reservation_overrun(self, tokens: int) -> None:
        self.overrun_tokens += tokens

    def spend_overrun(self) -> None:
        self.spend_overruns += 1
