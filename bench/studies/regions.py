"""The admissions that a fail-over to a lagging Redis repeats, and the part of a limit that two regions leave unused.

`python -m bench.studies.regions`, a part of `make bench-limits`: docs/regions.md in simulated time, under a minute. The
rules are `policy/limits/admission.py`, which the tests hold to the scripts. The replica has every write of the primary
so many ms later, and takes over at once after a random call: the worst moment, since a pause admits less.
"""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from policy.limits.admission import admit
from policy.limits.counter_hash import CounterHash
from policy.limits.effective import Bound
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.settlement import NO_TOKENS

WINDOW_MS = 60_000
LAGS_MS = (0, 10, 100, 1000, 5000)
THRESHOLDS = (60, 600)
LOADS = (1.0, 3.0)
BURSTS = (1, 0.5)
"""The number of calls that come at once: one, or so large a part of the threshold."""
FAIL_OVERS = 10
WARM_UP_MS = 60_000
FALL_WITHIN_MS = 60_000
SHARES = (0.5, 0.8)
DEMANDS = ((0.5, 0.5), (0.7, 0.3), (0.9, 0.1), (1.0, 0.0))
DIVIDED_THRESHOLD = 600
DIVIDED_MS = 600_000


@dataclass(frozen=True, slots=True)
class Calls:
    """The arrival of calls: `load` times the threshold a minute on average, `burst` at once (below 1: its part)."""

    threshold: int
    load: float
    burst: float = 1

    @property
    def at_once(self) -> int:
        return int(self.burst) if self.burst >= 1 else int(self.burst * self.threshold)

    def times_ms(self, until_ms: int, chance: random.Random) -> Iterator[int]:
        gap_ms = WINDOW_MS * self.at_once / (self.load * self.threshold)
        at_ms = chance.expovariate(1 / gap_ms)
        while at_ms < until_ms:
            yield from [int(at_ms)] * self.at_once
            at_ms += chance.expovariate(1 / gap_ms)


class Counters:
    """One Redis that counts one limit."""

    def __init__(self, threshold: int, counters: CounterHash | None = None) -> None:
        self._bounds = (Bound(Limit(LimitType.REQUEST, Unit.MINUTE, threshold), "g", "g"),)
        self._hash = counters or CounterHash(lease_ms=0)

    def copied(self) -> CounterHash:
        """Copy its counters as they are now: values that nothing changes afterwards."""
        return CounterHash(self._hash.lease_ms, dict(self._hash.groups))

    def admitted(self, times_ms: Sequence[int]) -> list[int]:
        """Return the calls that were admitted."""
        return [at_ms for at_ms in times_ms if admit(self._hash, self._bounds, (NO_TOKENS,), at_ms).admitted]


@dataclass(frozen=True, slots=True)
class FailOver:
    """`worst`: the most admissions in any rolling minute. `loss`: what the replica had not seen; `arrived`: calls that
    came in the lag."""

    threshold: int
    worst: int
    loss: int
    arrived: int

    @property
    def over(self) -> int:
        return max(0, self.worst - self.threshold)

    @property
    def bound(self) -> int:
        """The formula: calls that arrived in the lag, but no more than the threshold."""
        return min(self.threshold, self.arrived)


def fail_over(calls: Calls, lag_ms: int, seed: int) -> FailOver:
    """One primary that falls, and a replica that takes over."""
    chance = random.Random(f"{calls} {seed}")
    moment_ms = WARM_UP_MS + chance.randrange(FALL_WITHIN_MS)
    times_ms = list(calls.times_ms(moment_ms + 6 * WINDOW_MS, chance))
    fall_ms = times_ms[min(bisect_left(times_ms, moment_ms), len(times_ms) - 1)]
    del times_ms[bisect_right(times_ms, fall_ms + WINDOW_MS) :]
    replicated = bisect_right(times_ms, fall_ms - lag_ms)
    fallen = bisect_right(times_ms, fall_ms)
    primary = Counters(calls.threshold)
    admitted = primary.admitted(times_ms[:replicated])
    replica = Counters(calls.threshold, primary.copied())
    loss = primary.admitted(times_ms[replicated:fallen])
    admitted += loss + replica.admitted(times_ms[fallen:])
    return FailOver(calls.threshold, worst_window(admitted), len(loss), fallen - replicated)


def worst_window(times_ms: Sequence[int]) -> int:
    """The most of these sorted times in any rolling minute, both ends included."""
    return max((place - bisect_left(times_ms, at - WINDOW_MS) for place, at in enumerate(times_ms, start=1)), default=0)


def shares_of(threshold: int, part: float) -> tuple[int, int]:
    """A threshold in two whole parts that add up to it, at least 1 each."""
    first = min(threshold - 1, max(1, round(threshold * part)))
    return first, threshold - first


def divided(shares: tuple[int, int], demands: tuple[float, float], seed: int) -> tuple[float, int]:
    """Utilisation of the whole limit, and the most admissions of both regions in any rolling minute.

    `demands`: calls a minute in each region, as parts of the whole threshold.
    """
    threshold = sum(shares)
    chance = random.Random(seed)
    admitted: list[int] = []
    for share, demand in zip(shares, demands, strict=True):
        if demand:
            times_ms = list(Calls(threshold, demand).times_ms(DIVIDED_MS, chance))
            admitted += Counters(share).admitted(times_ms)
    return len(admitted) / (threshold * DIVIDED_MS / WINDOW_MS), worst_window(sorted(admitted))


def usable(shares: tuple[int, int], demands: tuple[float, float]) -> float:
    """The formula: each region admits its demand, but no more than its share."""
    threshold = sum(shares)
    return sum(min(share / threshold, demand) for share, demand in zip(shares, demands, strict=True))


def print_fail_overs() -> None:
    print(f"REQUEST per MINUTE, {FAIL_OVERS} fail-overs each: most above the threshold in any rolling minute.")
    print(f"{'threshold':>9} {'load':>5} {'at once':>8} {'lag ms':>7} {'over':>6} {'bound':>6} {'rate x lag':>11}")
    for threshold, load, burst, lag_ms in product(THRESHOLDS, LOADS, BURSTS, LAGS_MS):
        calls = Calls(threshold, load, burst)
        worst = max((fail_over(calls, lag_ms, seed) for seed in range(FAIL_OVERS)), key=lambda one: one.over)
        expected = min(threshold, load * threshold * lag_ms / WINDOW_MS)
        figures = f"{calls.at_once:>8} {lag_ms:>7} {worst.over:>6} {worst.bound:>6} {expected:>11.1f}"
        print(f"{threshold:>9} {load:>5.0f} {figures}", flush=True)


def print_divisions() -> None:
    print(f"\nA limit of {DIVIDED_THRESHOLD} a minute in two fixed shares, for {DIVIDED_MS // 60_000} minutes.")
    print(f"{'shares':>11} {'demand':>11} {'used':>6} {'formula':>8} {'one limit':>10} {'worst minute':>13}")
    for part in SHARES:
        shares = shares_of(DIVIDED_THRESHOLD, part)
        for load in LOADS:
            for demand in DEMANDS:
                demands = (demand[0] * load, demand[1] * load)
                usage, worst = divided(shares, demands, seed=1)
                names = f"{'/'.join(map(str, shares)):>11} {demands[0]:>6.1f}/{demands[1]:.1f} "
                print(
                    f"{names} {usage:>6.2f} {usable(shares, demands):>8.2f} {min(1.0, sum(demands)):>10.2f} {worst:>13}"
                )


def main() -> None:
    print_fail_overs()
    print_divisions()


if __name__ == "__main__":
    main()
