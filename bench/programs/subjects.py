"""Starts what is measured side by side: the upstream, Tollgate's two slugs, the bare Tollgate, and the peers."""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from bench.figures import BARE, BUDGETS, BUILT, GOVERNED, OPEN, OURS
from bench.load import Call
from bench.programs.compiled import build
from bench.programs.gateway import Gateway, start_gateway
from bench.programs.nginx_governed import start_nginx_governed
from bench.programs.peers import (
    Peer,
    start_envoy,
    start_litellm,
    start_litellm_with_budgets,
    start_nginx,
    start_portkey,
)
from bench.programs.processes import OTHER_CORE, PROXY_CORE, BenchError, Program, answers, free_port, start, wait_until
from bench.quiet import Machine
from bench.usage import Usage

Result = TypeVar("Result")
Find = Callable[[], list[int]]
PEERS: dict[str, Callable[[int, Path], Peer]] = {
    "nginx": start_nginx,
    "envoy": start_envoy,
    BUILT: start_nginx_governed,
    "litellm": start_litellm,
    BUDGETS: start_litellm_with_budgets,
    "portkey": start_portkey,
}


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of the tables: a call to repeat, and the processes that serve it, by part (at least `worker`)."""

    name: str
    version: str
    call: Call
    parts: Mapping[str, Find]

    def proxy_pids(self) -> list[int]:
        return [pid for part in ("worker", "supervisor") if part in self.parts for pid in self.parts[part]()]

    @property
    def is_python_or_node(self) -> bool:
        """Return whether the peer is too slow for large loads."""
        return self.name in ("litellm", BUDGETS, "portkey")


def proxy_cpu_s(usage: Mapping[str, Usage]) -> float:
    """CPU seconds of the proxy's processes: worker and supervisor."""
    return sum(usage[part].cpu_s for part in ("worker", "supervisor") if part in usage)


@dataclass(frozen=True, slots=True)
class Rig:
    """The upstream and the machine, which every subject is measured with. `direct`: a call without a gateway."""

    upstream: Program
    direct: Call
    machine: Machine

    def measure(self, act: Callable[[], Result], parts: Mapping[str, Find]) -> tuple[Result, dict[str, Usage]]:
        """Run `act` undisturbed. Returns its result and the usage of each of `parts`, and of the upstream."""
        return self.machine.undisturbed(act, {**parts, "upstream": self.upstream.pids})


def start_rig(stack: ExitStack, direct: Callable[[int], Call], scratch: Path, *, may_be_shared: bool = False) -> Rig:
    """Start the upstream on the load's core."""
    port = free_port()
    argv = [str(build("upstream")), str(port), "20", "50"]
    program = start("upstream", argv, OTHER_CORE, scratch / "upstream.log")
    stack.callback(program.stop)
    wait_until(lambda: answers(port), "the upstream")
    return Rig(program, direct(port), Machine(may_be_shared))


def start_all(stack: ExitStack, rig: Rig, scratch: Path, names: Sequence[str]) -> tuple[list[Subject], dict[str, str]]:
    """Start Tollgate and the wanted subjects. Also returns why a peer could not be started."""
    port = rig.direct.port
    gateway = start_gateway(port, scratch)
    stack.callback(gateway.program.stop)
    calls = {GOVERNED: gateway.governed, OPEN: gateway.open}
    subjects = [own(gateway, name, call) for name, call in calls.items() if name in names]
    if BARE in names:
        subjects.append(_start_bare(stack, gateway, port, scratch))
    missing: dict[str, str] = {}
    for name in names:
        if name in OURS:
            continue
        try:
            peer = PEERS[name](port, scratch)
        except (BenchError, OSError, subprocess.SubprocessError) as error:
            missing[name] = str(error)
            print(f"  {name}: not measured: {error}", flush=True)
            continue
        for program in peer.programs():
            stack.callback(program.stop)
        subjects.append(_other(peer))
    return subjects, missing


def own(gateway: Gateway, name: str, call: Call) -> Subject:
    """Tollgate, called by one of its slugs."""

    def part(which: str) -> Find:
        return lambda: gateway.pids(which)

    return Subject(name, "this checkout", call, {which: part(which) for which in gateway.PARTS})


def _start_bare(stack: ExitStack, gateway: Gateway, upstream_port: int, scratch: Path) -> Subject:
    port = free_port()
    argv = [sys.executable, "-m", "bench.programs.bare", str(port), str(upstream_port), str(gateway.data)]
    program = start("bare", argv, PROXY_CORE, scratch / "bare.log")
    stack.callback(program.stop)
    wait_until(lambda: answers(port), "bench.programs.bare")
    return Subject(BARE, "this checkout", replace(gateway.governed, port=port), {"worker": program.pids})


def _other(peer: Peer) -> Subject:
    parts = {"worker": peer.program.pids, **({"redis": peer.redis.pids} if peer.redis else {})}
    return Subject(peer.name, peer.version, peer.call, parts)
