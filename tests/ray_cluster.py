"""A private two-node Ray on loopback for tests: own ports, a short temporary directory, ended by pid afterwards.

Each node has an address of its own, 127.0.0.x, as if it were a machine.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.podman import Podman
from tests.ports import own_port
from tests.processes import command_line

HEAD = "127.0.0.2"
SECOND = "127.0.0.3"
CPUS = 8
_START_TIMEOUT_S = 90
_BIN = Path(sys.executable).parent
_ENVIRONMENT = {
    "PATH": f"{_BIN}:{os.environ.get('PATH', os.defpath)}",
    "HOME": "/tmp",
    "PYTHONPATH": str(Path(__file__).parent.parent),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    # Fewer processes, and a lost node is noticed in three seconds instead of fifteen.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_health_check_period_ms": "500",
}


@dataclass
class RayCluster:
    """The head, and after `add_second` a second node."""

    directory: Path
    podman: Podman
    port: int = field(default_factory=own_port)
    dashboard: int = field(default_factory=own_port)
    nodes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.dashboard}"

    def start_head(self) -> None:
        dashboard = ("--dashboard-host=127.0.0.1", f"--dashboard-port={self.dashboard}")
        client = f"--ray-client-server-port={own_port()}"
        self._start(HEAD, "--head", f"--port={self.port}", *dashboard, client)
        self._until(lambda: self._alive() == 1)

    def add_second(self) -> None:
        self._start(SECOND, f"--address={HEAD}:{self.port}")
        self._until(lambda: self._alive() == 2)

    def _start(self, address: str, *options: str) -> None:
        name = f"n{len(self.nodes)}"
        size = (f"--num-cpus={CPUS}", f"--object-store-memory={80_000_000}", f"--memory={4 << 30}")
        ports = ("--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={own_port()}")
        quiet = ("--disable-usage-stats", "--include-log-monitor=false", f"--temp-dir={self.directory / name}")
        command: list[str | Path] = [
            _BIN / "ray",
            "start",
            "--block",
            f"--node-ip-address={address}",
            *options,
            *size,
            *ports,
            *quiet,
        ]
        path = f"{self.podman.directory}:{_ENVIRONMENT['PATH']}"
        with (self.directory / f"{name}.log").open("wb") as log:
            node = subprocess.Popen(command, cwd="/tmp", env=_ENVIRONMENT | {"PATH": path}, stdout=log, stderr=log)
        self.nodes.append(node)

    def _until(self, condition: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + _START_TIMEOUT_S
        while not condition():
            if self.nodes[-1].poll() is not None or time.monotonic() > give_up_at:
                log = self.directory / f"n{len(self.nodes) - 1}.log"
                raise RuntimeError(f"Ray did not start: {log.read_text()[-3000:]}")
            time.sleep(0.1)

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"{self.address}/api/v0/nodes", timeout=5) as answer:
                nodes = json.load(answer)["data"]["result"]["result"]
        except (urllib.error.URLError, OSError, ValueError):
            return 0
        return sum(node["state"] == "ALIVE" for node in nodes)

    def kill_node(self, number: int) -> None:
        """Kill a node's raylet at once, as the loss of the machine would: its workers end with it."""
        raylets = [pid for pid in _children(self.nodes[number].pid) if "raylet/raylet" in command_line(pid)]
        assert len(raylets) == 1
        os.kill(raylets[0], signal.SIGKILL)

    def stop(self) -> None:
        """Kill every process of the cluster, and of the jobs that run there."""
        pids = [pid for node in self.nodes for pid in (node.pid, *_descendants(node.pid))]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for node in self.nodes:
            node.wait()


@contextmanager
def running_ray() -> Iterator[RayCluster]:
    """A cluster of two nodes. Not in pytest's tmp_path: Ray's unix sockets need short paths."""
    directory = Path(tempfile.mkdtemp(prefix="tg-ray-", dir="/tmp"))
    cluster = RayCluster(directory, Podman.install(directory / "bin"))
    try:
        cluster.start_head()
        cluster.add_second()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _descendants(pid: int) -> list[int]:
    children = _children(pid)
    return children + [below for child in children for below in _descendants(child)]
