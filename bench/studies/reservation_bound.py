"""Simulates what the second sum of TOKEN limits costs ordinary traffic: calls admitted by one sum and by both.

`python -m bench.studies.reservation_bound [MINUTES]`. The rules are `policy/limits/admission.py` and
`proxy/accounting/call_bound.py`. Counts, not seconds: the same seed gives the same figures on every machine. The
threshold is `CALLS` calls of the kind a minute; a larger one admits a larger share. Callers repeat a refused call
twice, after `Retry-After`, as stock SDKs do; or they never repeat one.
"""

import heapq
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from policy.limits.admission import admit, settle
from policy.limits.counter_hash import CounterHash
from policy.limits.counter_layout import kind_mask
from policy.limits.effective import Bound
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.settlement import Estimate, Reservation, Settlement
from proxy.accounting.call_bound import ASSUMED_OUTPUT_TOKENS
from proxy.accounting.output_estimates import OutputEstimates
from proxy.accounting.reservations import LimitHit

CALLS = 20
BYTES_PER_TOKEN = 4
JSON_BYTES = 200
"""A body's members, beside its text."""
LEASE_MS = 1_240_000
SEEDS = range(1, 6)
LOADS = (0.8, 1.5, 3.0)
"""Offered tokens, as multiples of the threshold."""
REPEATS = 2
"""The number of times that a stock SDK repeats a refused call."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Calls of one kind. `cap`: what callers send; None for nothing. `first_token_ms`: before the answer begins."""

    name: str
    mean_input: int
    mean_output: int
    cap: int | None
    first_token_ms: int
    tokens_per_s: int = 60

    @property
    def threshold(self) -> int:
        """The tokens a minute that `CALLS` ordinary calls cost."""
        return CALLS * (self.mean_input + self.mean_output)


ORDINARY = (
    Workload("short chats with caps", 600, 400, 2_048, 300),
    Workload("short chats without caps", 600, 400, None, 300),
    Workload("agents with 100 k prompts", 100_000, 400, 32_000, 4_000),
)
UNCAPPED = tuple(
    Workload(f"chats without caps, {input} + {output}", input, output, None, 300)
    for input, output in ((150, 150), (300, 200), (400, 300), (500, 500))
)
"""Chats without caps. Where `CALLS` of them cost little more than one of them may, they pass nearly one by one."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is offered, and what it costs."""

    at_ms: int
    input: int
    output: int
    lasts_ms: int
    repeats: int


def calls_of(
    workload: Workload, load: float, minutes: int, chance: random.Random, repeats: int = REPEATS
) -> Iterator[Call]:
    """Calls at `load` times the threshold, whose sizes are skewed."""
    gap_ms = 60_000 / (load * CALLS)
    at_ms = 0.0
    while at_ms < minutes * 60_000:
        at_ms += chance.expovariate(1 / gap_ms)
        input_tokens = round(chance.lognormvariate(0, 0.3) * workload.mean_input / 1.046) + 1
        output = round(chance.lognormvariate(0, 0.8) * workload.mean_output / 1.377) + 1
        output = min(output, workload.cap or output)
        lasts_ms = workload.first_token_ms + output * 1000 // workload.tokens_per_s
        yield Call(int(at_ms), input_tokens, output, lasts_ms, repeats)


class Limited:
    """One TOKEN limit a minute. `both_sums`: whether it also looks at what calls can cost at most."""

    def __init__(self, workload: Workload, both_sums: bool) -> None:
        limit = Limit(LimitType.TOKEN, Unit.MINUTE, workload.threshold)
        self._cap = workload.cap
        self._both_sums = both_sums
        self._bounds = (Bound(limit, "g", "g"),)
        self._mask = kind_mask((limit,))
        self._counters = CounterHash(LEASE_MS)
        self._estimates = OutputEstimates()
        self._number = 0

    def offer(self, call: Call) -> Reservation | int:
        """Return what an admitted call reserves, or how many ms a refused one is told to wait."""
        body_bytes = BYTES_PER_TOKEN * call.input + JSON_BYTES
        expected = body_bytes // BYTES_PER_TOKEN + self._estimates.expected_output("g", "s", self._cap)
        most = max(expected, body_bytes + (self._cap or ASSUMED_OUTPUT_TOKENS))
        margin = most - expected if self._both_sums else 0
        decision = admit(self._counters, self._bounds, (Estimate(expected, margin),), call.at_ms)
        if not decision.admitted:
            hit = LimitHit(self._bounds[0], decision.retry_after_ms)
            return 1000 * hit.retry_after_s
        return Reservation(
            key="k",
            buckets=(("g", self._mask),),
            admitted_at_ms=decision.now_ms,
            reserved_tokens=expected,
            margin_tokens=margin,
        )

    def end(self, call: Call, reservation: Reservation, now_ms: int) -> None:
        """Settle an admitted call."""
        self._number += 1
        tokens = call.input + call.output
        settlement = Settlement(reservation=reservation, number=self._number, actual_tokens=tokens)
        settle(self._counters, "w", (settlement,), now_ms)
        self._estimates.record("g", "s", call.output)


class Traffic:
    """Offers calls in the order of time, ends the admitted ones, and repeats the refused ones."""

    def __init__(self, limited: Limited) -> None:
        self._limited = limited
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self.admitted = 0

    def offer_all(self, calls: Iterator[Call]) -> int:
        """Return how many of the calls are admitted."""
        for call in calls:
            self._do_what_is_due(call.at_ms)
            self._offer(call)
        return self.admitted

    def _do_what_is_due(self, now_ms: int) -> None:
        while self._due and self._due[0][0] <= now_ms:
            heapq.heappop(self._due)[2]()

    def _at(self, at_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at_ms, next(self._order), action))

    def _offer(self, call: Call) -> None:
        answer = self._limited.offer(call)
        if isinstance(answer, Reservation):
            self.admitted += 1
            ends_at_ms = call.at_ms + call.lasts_ms
            self._at(ends_at_ms, partial(self._limited.end, call, answer, ends_at_ms))
        elif call.repeats:
            again = replace(call, at_ms=call.at_ms + answer, repeats=call.repeats - 1)
            self._at(again.at_ms, partial(self._offer, again))


def compare(workload: Workload, load: float, minutes: int, repeats: int = REPEATS) -> tuple[int, int]:
    """Calls admitted by the first sum alone, and by both, offered the same calls."""

    def admitted_by(both_sums: bool) -> int:
        offered = (calls_of(workload, load, minutes, random.Random(seed), repeats) for seed in SEEDS)
        return sum(Traffic(Limited(workload, both_sums)).offer_all(calls) for calls in offered)

    return admitted_by(both_sums=False), admitted_by(both_sums=True)


def main(minutes: int) -> None:
    print(f"Calls admitted under {CALLS} ordinary calls a minute, {len(SEEDS)} times {minutes} simulated minutes")
    print(f"{'workload':>30} {'repeats':>7} {'load':>5} {'first sum':>10} {'both sums':>10} {'share':>6}")
    for workload in (*ORDINARY, *UNCAPPED):
        for repeats in (REPEATS, 0):
            for load in LOADS:
                first, both = compare(workload, load, minutes, repeats)
                print(f"{workload.name:>30} {repeats:>7} {load:>5} {first:>10} {both:>10} {both / first:>6.1%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
