"""TOKEN limits at three times overload, in simulated time: reserve and settle, beside charging afterwards.

`python -m bench.studies.limits_overload [MINUTES]`. The rules are `policy/limits/admission.py` and
`proxy/accounting/output_estimates.py`, which the tests hold to the scripts. A call's true tokens count at its
admission. Utilisation: tokens admitted per minute, as a fraction of the threshold. Worst minute: the most in any
rolling minute, as a multiple of it.
"""

import heapq
import random
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from policy.limits.admission import admit, charge, settle
from policy.limits.counter_hash import CounterHash
from policy.limits.counter_layout import kind_mask
from policy.limits.effective import Bound
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.settlement import NO_TOKENS, Estimate, Reservation, Settlement
from proxy.accounting.output_estimates import OutputEstimates

OVERLOAD = 3.0
MEAN_INPUT = 600
MEAN_OUTPUT = 400
TOKENS_PER_S = 60
"""The pace of an answer, and so the time that a call holds its reservation."""
WARM_UP_MS = 120_000
LEASE_MS = 1_240_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A call that is offered, and what it will cost."""

    at_ms: int
    input: int
    output: int
    cap: int | None

    @property
    def tokens(self) -> int:
        return self.input + self.output

    @property
    def ends_at_ms(self) -> int:
        return self.at_ms + 300 + self.output * 1000 // TOKENS_PER_S


def arrivals(threshold: int, minutes: int, burst: int, chance: random.Random) -> Iterator[Arrival]:
    """Calls of skewed sizes at `OVERLOAD` times the threshold, `burst` at once. Two in three name a cap."""
    gap_ms = 60_000 * (MEAN_INPUT + MEAN_OUTPUT) * burst / (OVERLOAD * threshold)
    at_ms = 0.0
    while at_ms < minutes * 60_000 + WARM_UP_MS:
        at_ms += chance.expovariate(1 / gap_ms)
        for _ in range(burst):
            input_tokens = round(chance.lognormvariate(0, 0.8) * MEAN_INPUT / 1.377) + 1
            output = round(chance.lognormvariate(0, 1.0) * MEAN_OUTPUT / 1.649) + 1
            cap = chance.choice((None, max(output, 1024), max(output, 4096)))
            yield Arrival(int(at_ms), input_tokens, output, cap)


class Reserving:
    """Tollgate's rule: reserve the estimate, and settle the true count at the end."""

    def __init__(self, threshold: int) -> None:
        self._limit = Limit(LimitType.TOKEN, Unit.MINUTE, threshold)
        self._bounds = (Bound(self._limit, "g", "g"),)
        self._book = CounterHash(LEASE_MS)
        self._output_estimates = OutputEstimates()
        self._number = 0

    def offer(self, call: Arrival) -> Callable[[], None] | None:
        """None if refused, else what to do when the call ends."""
        estimate = call.input + self._output_estimates.expected_output("g", "s", call.cap)
        decision = admit(self._book, self._bounds, (Estimate(estimate),), call.at_ms)
        if not decision.admitted:
            return None
        reservation = Reservation(
            key="k",
            buckets=(("g", kind_mask((self._limit,))),),
            admitted_at_ms=decision.now_ms,
            reserved_tokens=estimate,
        )
        return lambda: self._end(call, reservation)

    def _end(self, call: Arrival, reservation: Reservation) -> None:
        self._number += 1
        settle(
            self._book,
            "w",
            (Settlement(reservation=reservation, number=self._number, actual_tokens=call.tokens),),
            call.ends_at_ms,
        )
        self._output_estimates.record("g", "s", call.output)


class ChargingAfterwards:
    """The usual rule: compare with what has been charged, and charge when the answer is complete."""

    def __init__(self, threshold: int) -> None:
        self._bounds = (Bound(Limit(LimitType.TOKEN, Unit.MINUTE, threshold), "g", "g"),)
        self._book = CounterHash(LEASE_MS)

    def offer(self, call: Arrival) -> Callable[[], None] | None:
        if not admit(self._book, self._bounds, (NO_TOKENS,), call.at_ms).admitted:
            return None
        return lambda: charge(self._book, self._bounds, 1, Estimate(call.tokens), call.ends_at_ms)


@dataclass(frozen=True, slots=True)
class Result:
    utilisation: float
    worst_minute: float


def simulate(way: Reserving | ChargingAfterwards, calls: Iterator[Arrival], threshold: int) -> Result:
    """Offer the calls in order, and end those that are due."""
    ends: list[tuple[int, int, Callable[[], None]]] = []
    passed: list[Arrival] = []
    for number, call in enumerate(calls):
        while ends and ends[0][0] <= call.at_ms:
            heapq.heappop(ends)[2]()
        end = way.offer(call)
        if end is not None:
            heapq.heappush(ends, (call.ends_at_ms, number, end))
            passed.append(call)
    return _measure([call for call in passed if call.at_ms >= WARM_UP_MS], threshold)


def _measure(passed: list[Arrival], threshold: int) -> Result:
    instants = [call.at_ms for call in passed]
    sums = [0, *accumulate(call.tokens for call in passed)]
    worst = max(sums[bisect_right(instants, start + 60_000)] - sums[place] for place, start in enumerate(instants))
    minutes = (instants[-1] - WARM_UP_MS) / 60_000
    return Result(sums[-1] / minutes / threshold, worst / threshold)


def compare(threshold: int, minutes: int, burst: int, seed: int = 1) -> tuple[Result, Result]:
    """(reserving, charging afterwards), offered the same calls."""
    reserving = simulate(Reserving(threshold), arrivals(threshold, minutes, burst, random.Random(seed)), threshold)
    after = ChargingAfterwards(threshold)
    return reserving, simulate(after, arrivals(threshold, minutes, burst, random.Random(seed)), threshold)


def main(minutes: int) -> None:
    print(f"TOKEN limits at {OVERLOAD:.0f} times overload, {minutes} simulated minutes")
    print(f"{'threshold':>10} {'burst':>5}   {'reserve and settle':^24}   {'charge afterwards':^24}")
    print(f"{'':>10} {'':>5}   {'utilisation':>11} {'worst minute':>12}   {'utilisation':>11} {'worst minute':>12}")
    for threshold, burst in ((2_000_000, 1), (100_000, 1), (100_000, 50), (10_000, 50)):
        ours, theirs = compare(threshold, minutes, burst)
        figures = f"{ours.utilisation:>11.2f} {ours.worst_minute:>12.2f}"
        print(f"{threshold:>10} {burst:>5}   {figures}   {theirs.utilisation:>11.2f} {theirs.worst_minute:>12.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
