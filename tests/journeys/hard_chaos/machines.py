"""The machines of a run: `tollgate up`, and a second proxy that is killed whole and started again on its files."""

import os
import subprocess
from pathlib import Path

from redis.asyncio import Redis

from tests.journeys.product import Product, spawn
from tests.ports import own_port


class SecondMachine(Product):
    """A proxy with files of its own, on the Redis and the control of `first`, which runs."""

    def __init__(self, first: Product, data: Path, workers: int) -> None:
        super().__init__(data, workers)
        (pid,) = (pid for pid in first.processes("-m proxy ") if b"proxy.worker" not in _file(pid, "cmdline"))
        entries = (entry for entry in _file(pid, "environ").decode().split("\0") if "=" in entry)
        self.environment = dict(entry.split("=", 1) for entry in entries)
        for name in ("TOLLGATE_JOURNAL_DIR", "TOLLGATE_REPLICA_PATH"):
            self.environment.pop(name, None)
        port = own_port()
        admin = own_port()
        self.ports = ("--proxy-port", str(port), "--admin-port", str(admin))
        self.proxy = f"http://127.0.0.1:{port}"
        self.admin = f"http://127.0.0.1:{admin}"

    def launch(self) -> subprocess.Popen[str]:
        words = ("proxy", "--data", str(self.data), "--workers", str(self.workers), *self.ports)
        self._up = spawn(words, self.environment, self.log)
        return self._up

    def start(self) -> str:
        """Start it. It serves a moment later."""
        self.launch()
        return ""


async def flush(product: Product) -> None:
    """Empty the Redis that the product runs itself."""
    folder = os.open(product.data, os.O_RDONLY)  # a socket's path must be short
    try:
        async with Redis.from_url(f"unix:///proc/self/fd/{folder}/redis.sock") as redis:
            await redis.flushall()
    finally:
        os.close(folder)


def _file(pid: int, name: str) -> bytes:
    return (Path("/proc") / str(pid) / name).read_bytes()
