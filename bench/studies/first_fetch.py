"""The cost of a new proxy's first fetch of all policy: time, memory of supervisor and control, bytes.

`python -m bench.studies.first_fetch [--keys N] [--postgres]`. A real `tollgate control` on a database of 10 000
endpoints, 100 000 groups and N keys, and of a tenth of N keys, for each a real proxy without a replica. Control and
proxy have a core each. Memory: the high-water mark of the process while it fetches, and before.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.programs.control_plane import ControlPlane, policy_database, size_mib
from bench.programs.processes import OTHER_CORE, BenchError, free_port, start, treat_sigterm_as_interrupt
from bench.studies.policy_scale import rows
from bench.usage import cpu_s
from tests.redis_server import private_redis

TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Fetched:
    """The cost of one fetch: seconds, CPU seconds, and the high-water marks in MiB."""

    took_s: float
    proxy_cpu_s: float
    control_cpu_s: float
    proxy_mib: float
    control_mib: float
    control_before_mib: float
    replica_mib: float


def high_water_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise BenchError(f"process {pid} ended")


def fetch(folder: Path, control: ControlPlane) -> Fetched:
    """Start a proxy without a replica and wait until it has all policy. Prints what `/readyz` says meanwhile."""
    replica = folder / "replica.db"
    admin = free_port()
    environ = control.environ | {
        "TOLLGATE_CONTROL_URL": control.url,
        "TOLLGATE_REPLICA_PATH": str(replica),
        "TOLLGATE_JOURNAL_DIR": str(folder / "journal"),
        "TOLLGATE_ASYNC_WORKERS": "0",
    }
    (control_pid,) = control.pids()
    before_mib = high_water_mib(control_pid)
    before_s = cpu_s([control_pid])
    argv = [sys.executable, "-m", "proxy", "--proxy-port", str(free_port()), "--admin-port", str(admin)]
    start_s = time.monotonic()
    proxy = start("proxy", argv, OTHER_CORE, folder / "proxy.log", environ)
    try:
        wait_for_policy(admin)
        return Fetched(
            time.monotonic() - start_s,
            cpu_s([proxy.popen.pid]),
            cpu_s([control_pid]) - before_s,
            high_water_mib(proxy.popen.pid),
            high_water_mib(control_pid),
            before_mib,
            replica.stat().st_size / 2**20,
        )
    finally:
        proxy.stop()


def wait_for_policy(admin_port: int) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    told_s = time.monotonic()
    while (text := policy_check(admin_port)) != "ok":
        if time.monotonic() > end_s:
            raise BenchError(f"no policy after {TIMEOUT_S} s: {text}")
        if text and time.monotonic() - told_s > 10:
            told_s = time.monotonic()
            print(f"  /readyz: policy: {text}", flush=True)
        time.sleep(0.1)


def policy_check(admin_port: int) -> str:
    """Return what `/readyz` says of policy; "" before it answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/readyz", timeout=10) as answer:
            report = json.load(answer)
    except urllib.error.HTTPError as error:
        report = json.load(error)
    except OSError:
        return ""
    return str(report["checks"]["policy"])


def measure(keys: int, postgres: bool) -> Fetched:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database, count = asyncio.run(policy_database(stack, folder, rows(keys), postgres))
        size = asyncio.run(size_mib(database))
        redis = stack.enter_context(private_redis())
        control = stack.enter_context(ControlPlane(folder, database, redis.url))
        control.make_workspace()
        result = fetch(folder, control)
    print(
        f"{count:,} rows of {size:.0f} MiB from {database.partition(':')[0]}: {result.took_s:.1f} s"
        f" (CPU: supervisor {result.proxy_cpu_s:.1f} s, control {result.control_cpu_s:.1f} s),"
        f" replica {result.replica_mib:.0f} MiB; at most {result.proxy_mib:.0f} MiB in the supervisor,"
        f" {result.control_mib:.0f} MiB in control ({result.control_before_mib:.0f} MiB before)",
        flush=True,
    )
    return result


def main() -> None:
    treat_sigterm_as_interrupt()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    few, many = (measure(keys, options.postgres) for keys in (options.keys // 10, options.keys))
    print(f"supervisor's memory with ten times the keys: {many.proxy_mib / few.proxy_mib:.2f} times")


if __name__ == "__main__":
    main()
