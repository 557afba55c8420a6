"""Ten minutes of governed calls by more and more groups: memory and CPU per call must stay flat.

`python -m bench.soak [SECONDS]`, a part of `make soak`. In the first third new groups keep calling, each with an
entity label of its own; then no new ones come. Each slice of time also measures one key that was there from the start:
its cost must depend neither on the uptime nor on the other groups. Exit status 1 if anything grew, or if the machine
stayed busy.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bench.figures import GOVERNED
from bench.load import Call, run_wrk
from bench.programs.gateway import Gateway, start_gateway
from bench.programs.peers import CHAT, chat_body
from bench.programs.processes import BenchError, rss_mib, treat_sigterm_as_interrupt
from bench.programs.subjects import Rig, Subject, own, start_rig

SOAK_S = 600
SLICES = 30
ROOTS = 50
"""Trees of groups."""
LEAVES = 20
"""Groups with a key, in each tree."""
CONNECTIONS = 32
DELAY_MS = 20
"""The pause of each answer: at most 1 600 calls a second: ten minutes at full speed would make 2 GB of events."""
CPU_GROWTH = 1.15
MEMORY_GROWTH = 1.05
SLACK_MIB = 2.0
PROXY = ("worker", "supervisor")
_HEAD = " slice groups   CPU µs a call: many keys, one key, Redis   MiB: worker, supervisor, Redis, control"


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice of time: CPU µs per call of many keys and of the one key, and memory per part.

    Memory is anonymous memory only: the share of a library's pages changes whenever any program starts or ends.
    """

    groups: int
    many_us: Mapping[str, float]
    one_us: Mapping[str, float]
    mib: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Soak:
    """A running gateway under measurement. `keys`: one per group."""

    gateway: Gateway
    subject: Subject
    rig: Rig
    keys: Sequence[str]
    scratch: Path

    def slice(self, groups: int, seconds: int) -> Slice:
        """Measure calls by the first `groups` groups, then by the one key, for at least a second each."""
        one_s = max(1, seconds // 4)
        many_us = self._cost_us(max(1, seconds - one_s), every_key(self.keys[:groups]))
        one_us = self._cost_us(one_s, every_key([]))
        mib = {part: rss_mib(find(), "Pss_Anon") for part, find in self.subject.parts.items()}
        return Slice(groups, many_us, one_us, mib)

    def _cost_us(self, seconds: int, script: Sequence[str]) -> dict[str, float]:
        call = replace(self.gateway.governed, script=script)
        load, shares = self.rig.measure(lambda: run_wrk(call, CONNECTIONS, seconds, self.scratch), self.subject.parts)
        return {part: usage.cpu_s * 1e6 / load.requests for part, usage in shares.items()}


def every_key(keys: Sequence[str]) -> list[str]:
    """Lua for wrk: the keys in turn (if none: the call's own), and a delay before each call."""
    lines = [f"function delay() return {DELAY_MS} end"]
    if keys:
        names = ", ".join(f'"{key}"' for key in keys)
        lines += [
            f"local keys, calls, turn = {{{names}}}, {{}}, 0",
            "function init()",
            "  for place, key in ipairs(keys) do",
            '    wrk.headers["authorization"] = "Bearer " .. key',
            "    calls[place] = wrk.format()",
            "  end",
            "end",
            "function request() turn = turn % #calls + 1; return calls[turn] end",
        ]
    return lines


def make_groups(gateway: Gateway) -> list[str]:
    """Create trees of two levels with four limits on each path. Returns the keys, one of each tree in turn."""
    api = gateway.api
    keys = []
    roots = [api.group(f"soak-{tree}", [("REQUEST", "MINUTE")], None) for tree in range(ROOTS)]
    kinds = [("TOKEN", "MINUTE"), ("REQUEST", "SECOND"), ("REQUEST", "DAY")]
    for leaf in range(LEAVES):
        print(f"  {leaf * ROOTS} of {LEAVES * ROOTS} groups created", flush=True)
        keys += [api.mint(api.group(f"soak-{tree}-{leaf}", kinds, root)) for tree, root in enumerate(roots)]
    return keys


def run(seconds: int, scratch: Path, stack: ExitStack) -> list[Slice]:
    """Run the soak. Returns all slices, in order."""
    rig = start_rig(stack, lambda port: Call(port, CHAT, chat_body("bench")), scratch)
    gateway = start_gateway(rig.direct.port, scratch)
    stack.callback(gateway.program.stop)
    soak = Soak(gateway, own(gateway, GOVERNED, gateway.governed), rig, make_groups(gateway), scratch)
    soak.slice(1, 5)
    slices = []
    print(_HEAD, flush=True)
    for number in range(SLICES):
        groups = min(len(soak.keys), len(soak.keys) * (number + 1) * 3 // SLICES)
        slices.append(last := soak.slice(groups, seconds // SLICES))
        costs = (proxy_us(last.many_us), proxy_us(last.one_us), last.many_us["redis"])
        memory = " ".join(f"{last.mib[part]:8.1f}" for part in ("worker", "supervisor", "redis", "control"))
        print(
            f"{number + 1:6} {groups:6}   " + " ".join(f"{cost:12.1f}" for cost in costs) + f"   {memory}", flush=True
        )
    return slices


def proxy_us(costs: Mapping[str, float]) -> float:
    return sum(costs[part] for part in PROXY)


def verdicts(slices: Sequence[Slice]) -> list[tuple[str, bool]]:
    """One line per claim, and whether it held. CPU is compared from the start, memory once all groups are known.

    By then all caches of groups have reached their bounds: a worker's rows of policy, plans and lanes (`CACHE_WEIGHT`,
    `PLANS_KEPT`, `_LANES_KEPT` in proxy/edges); control caches none.
    """
    third = len(slices) // 3
    early = slices[:third]
    middle = slices[third : 2 * third]
    late = slices[-third:]
    costs: dict[str, Callable[[Slice], float]] = {
        "the proxy's CPU of a call, many keys": lambda one: proxy_us(one.many_us),
        "the proxy's CPU of a call, the one key": lambda one: proxy_us(one.one_us),
        "Redis' CPU of a call, the one key": lambda one: one.one_us["redis"],
    }
    lines = []
    for claim, of in costs.items():
        before, after = (statistics.median(of(one) for one in part) for part in (early, late))
        text = f"{claim}, first third → last third: {before:.1f} → {after:.1f} µs (at most {CPU_GROWTH} times)"
        lines.append((text, after <= before * CPU_GROWTH))
    for name in slices[0].mib:
        before, after = (statistics.median(one.mib[name] for one in part) for part in (middle, late))
        bound = f"at most {MEMORY_GROWTH} times and {SLACK_MIB:.0f} MiB"
        text = f"memory of {name}, second third → last third: {before:.1f} → {after:.1f} MiB ({bound})"
        lines.append((text, after <= before * MEMORY_GROWTH + SLACK_MIB))
    return lines


def main(seconds: int = SOAK_S) -> int:
    """Returns the exit status: 0 if everything stayed flat."""
    treat_sigterm_as_interrupt()
    try:
        with tempfile.TemporaryDirectory(prefix="tollgate-soak-") as scratch, ExitStack() as stack:
            results = verdicts(run(seconds, Path(scratch), stack))
    except BenchError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    for text, is_held in results:
        print(f"{text}: {'held' if is_held else 'NOT HELD'}")
    return 0 if all(is_held for _, is_held in results) else 1


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else SOAK_S))
