"""The CPU that a call costs over TLS, beside nginx and Envoy: `python -m bench.run --part tls`.

Each is called in plain text and over TLS, on connections that are kept and on a new one for each call, in interleaved
rounds. All have the same certificate (ECDSA P-256), and OpenSSL's or BoringSSL's defaults.
"""

import statistics
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.figures import GOVERNED, Findings
from bench.load import run_wrk
from bench.programs.gateway import start_gateway
from bench.programs.peers import start_envoy, start_nginx
from bench.programs.processes import BenchError
from bench.programs.subjects import Rig, Subject, other, own, proxy_cpu_s
from tests.fakes.pair_files import PairFiles

CONNECTIONS = 32
ROUNDS = 3
SECONDS = 3
_PEERS = {"nginx": start_nginx, "envoy": start_envoy}


def measure_tls(plain: Sequence[Subject], rig: Rig, findings: Findings, scratch: Path) -> None:
    """Note CPU per call of each subject in plain text and over TLS, on kept and on new connections."""
    place = scratch / "tls"
    place.mkdir()
    with ExitStack() as stack:
        subjects = {(one.name, "plain"): one for one in plain}
        for one in plain:
            try:
                subjects[one.name, "tls"] = _start(stack, one.name, rig, place)
            except (BenchError, OSError, subprocess.SubprocessError) as error:
                findings.missing[f"tls of {one.name}"] = str(error)
        costs: dict[tuple[str, str, str], list[float]] = {}
        for turn in range(ROUNDS):
            for (name, kind), subject in subjects.items():
                for connections in ("kept", "new"):
                    print(f"  {name:18} {kind:5} {connections} connections, round {turn + 1} of {ROUNDS}", flush=True)
                    us = _proxy_us(subject, rig, scratch, is_new=connections == "new")
                    costs.setdefault((name, kind, connections), []).append(us)
    for (name, kind, connections), rounds in costs.items():
        findings.notes.append(
            f"{name}, {kind}, {connections} connections: {statistics.median(rounds):.1f} CPU µs of the proxy per call"
            f" ({min(rounds):.1f} to {max(rounds):.1f}){_against_plain(costs, name, kind, connections)}"
        )


def _start(stack: ExitStack, name: str, rig: Rig, scratch: Path) -> Subject:
    place = scratch / name
    place.mkdir()
    pair = PairFiles(place).issue()
    if name == GOVERNED:
        gateway = start_gateway(rig.direct.port, place, settings=pair.settings)
        stack.callback(gateway.program.stop)
        return own(gateway, name, gateway.governed)
    peer = _PEERS[name](rig.direct.port, place, pair)
    stack.callback(peer.program.stop)
    return other(peer)


def _proxy_us(subject: Subject, rig: Rig, scratch: Path, *, is_new: bool) -> float:
    call = subject.call
    if is_new:
        call = replace(call, headers={**call.headers, "connection": "close"})
    load, usage = rig.measure(lambda: run_wrk(call, CONNECTIONS, SECONDS, scratch), subject.parts)
    return proxy_cpu_s(usage) * 1e6 / load.requests


def _against_plain(costs: dict[tuple[str, str, str], list[float]], name: str, kind: str, connections: str) -> str:
    """The ratio of the rounds to the same ones in plain text, and what TLS adds."""
    if kind == "plain":
        return ""
    pairs = list(zip(costs[name, "tls", connections], costs[name, "plain", connections], strict=True))
    ratio = statistics.median(tls / plain for tls, plain in pairs)
    added = statistics.median(tls - plain for tls, plain in pairs)
    return f"; {ratio:.2f} times plain, {added:.0f} µs more"
