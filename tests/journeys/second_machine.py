"""A second machine of a product: a proxy with files of its own, on the same Redis and the same control."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from tests.journeys.product import Product, ended, spawn
from tests.ports import own_port


@contextmanager
def second_proxy(product: Product, data: Path, workers: int) -> Iterator[str]:
    """Run a proxy with the settings of the product's own one. Yield its URL; stop it in the end."""
    (pid,) = (pid for pid in product.processes("-m proxy ") if b"proxy.worker" not in _file(pid, "cmdline"))
    environment = dict(entry.split("=", 1) for entry in _file(pid, "environ").decode().split("\0") if "=" in entry)
    for name in ("TOLLGATE_JOURNAL_DIR", "TOLLGATE_REPLICA_PATH"):
        environment.pop(name, None)
    port = str(own_port())
    admin = str(own_port())
    words = ("proxy", "--data", str(data), "--proxy-port", port, "--admin-port", admin, "--workers", str(workers))
    log = data.parent / f"{data.name}.log"
    process = spawn(words, environment, log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        assert ended(process) == 0, log.read_text(errors="replace")


async def serves(session: aiohttp.ClientSession, url: str, key: str) -> bool:
    """Return whether the proxy at `url` listens and knows the key."""
    try:
        async with session.get(url + "/v1/models", headers={"Authorization": f"Bearer {key}"}) as answer:
            return answer.status == 200
    except OSError:
        return False


def _file(pid: int, name: str) -> bytes:
    return (Path("/proc") / str(pid) / name).read_bytes()
