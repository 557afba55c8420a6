"""Real model servers for a journey: starts them, makes them healthy, kills them, and reads which calls reached them."""

import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from runtime.child_process import tie_to_parent
from tests.ports import own_port

PROGRAM = (sys.executable, "-m", "tests.journeys.replicas.server")


@dataclass
class ModelServerProcess:
    """One running server."""

    process: subprocess.Popen[str]
    url: str
    log: Path
    healthy_file: Path

    def become_healthy(self) -> None:
        self.healthy_file.touch()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def received(self) -> list[str]:
        """The request ids of the calls that reached it, in order."""
        return self.log.read_text().split() if self.log.exists() else []

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def most_at_once(self) -> int:
        """The most calls that it ever had at the same time."""
        most = Path(f"{self.log}.most")
        return int(most.read_text() or 0) if most.exists() else 0


@dataclass
class ModelServers:
    """All servers of one journey. `stop` ends those that still run."""

    directory: Path
    servers: list[ModelServerProcess] = field(default_factory=list)

    def start(self, *, healthy: bool = True, delay_s: float = 0.0) -> ModelServerProcess:
        name = f"server-{len(self.servers)}"
        log = self.directory / f"{name}.log"
        healthy_file = self.directory / f"{name}.healthy"
        port = own_port()
        process = subprocess.Popen(
            [*PROGRAM, str(port), str(log), str(healthy_file), str(delay_s)],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=tie_to_parent(),  # noqa: PLW1509
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        process.stdout.close()
        server = ModelServerProcess(process, f"http://127.0.0.1:{port}", log, healthy_file)
        self.servers.append(server)
        if healthy:
            server.become_healthy()
        return server

    def received(self) -> Counter[str]:
        """Count, by call, how often it reached a server."""
        return Counter(id for server in self.servers for id in server.received())

    def stop(self) -> None:
        for server in self.servers:
            server.kill()
