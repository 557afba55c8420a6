"""Measures the governed calls that a worker still serves while control does its longest work on the same core.

`python -m bench.studies.calls_beside_control` (decision 0064). The calls of control are those of `control_turns`, sent
one after the other. The load, the upstream and the callers have the other core.
"""

import os
import statistics
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from bench.load import Call, Load, run_wrk
from bench.programs.gateway import Gateway, make_workspace, start_gateway
from bench.programs.peers import CHAT, chat_body
from bench.programs.processes import OTHER_CORE, PROXY_CORE, pin, treat_sigterm_as_interrupt
from bench.programs.subjects import start_rig
from bench.studies.control_turns import ONCE, Act, Client, acts, tree

CONNECTIONS = 8
SECONDS = 3
ROUNDS = 3
OF_PROXIES = ("events from a proxy", "and with long numbers", "policy to a proxy")
"""Calls that the load itself causes."""


def main() -> None:
    treat_sigterm_as_interrupt()
    os.sched_setaffinity(0, {OTHER_CORE})
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        scratch = Path(folder)
        rig = start_rig(stack, lambda port: Call(port, CHAT, chat_body("bench")), scratch)
        gateway = start_gateway(rig.direct.port, scratch)
        stack.callback(gateway.program.stop)
        pin(gateway.pids("control"), PROXY_CORE)
        _measure(gateway, scratch)


def _measure(gateway: Gateway, scratch: Path) -> None:
    key = make_workspace(gateway.data, "acme")
    client = Client(gateway.control_port, key)
    calls = acts(client, gateway.control_port, key, tree(client))
    repeated = {name: act for name, act in calls.items() if name not in (*ONCE, *OF_PROXIES)}
    shares: dict[str, list[float]] = {name: [] for name in repeated}
    waits_ms: dict[str, list[float]] = {name: [] for name in repeated}
    run_wrk(gateway.governed, CONNECTIONS, SECONDS, scratch)  # warms up
    for _ in range(ROUNDS):
        alone = run_wrk(gateway.governed, CONNECTIONS, SECONDS, scratch)
        print(f"{alone.rate_per_s:.0f} governed calls a second alone, p99 {alone.p99_us / 1000:.1f} ms", flush=True)
        for name, act in repeated.items():
            load = _beside(act, gateway, scratch)
            shares[name].append(load.rate_per_s / alone.rate_per_s)
            waits_ms[name].append(load.p99_us / 1000)
    for name, kept in shares.items():
        share = f"{statistics.median(kept):4.0%} ({min(kept):.0%} to {max(kept):.0%})"
        print(f"{name:>24}  kept {share}; p99 {statistics.median(waits_ms[name]):.1f} ms", flush=True)


def _beside(act: Act, gateway: Gateway, scratch: Path) -> Load:
    """Repeat `act` while the load runs."""
    stopped = threading.Event()

    def repeat() -> None:
        while not stopped.is_set():
            act()

    caller = threading.Thread(target=repeat)
    caller.start()
    try:
        return run_wrk(gateway.governed, CONNECTIONS, SECONDS, scratch)
    finally:
        stopped.set()
        caller.join()


if __name__ == "__main__":
    main()
