"""`make clients` runs it: the original's SDK against a running product; docs/compatibility.md shows the results.

`python -m tests.clients.original.run` exits with 1 if a method is not as `expected.py` says.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.clients.catalogue import BUILT, ENVIRONMENT, ORIGINAL_RESULTS, ROOT
from tests.clients.original.expected import surprises
from tests.journeys.product import Product, ready_line, spawn
from tests.ports import own_port

PYTHON = BUILT / "baseten/bin/python"
KINDS = ("sync", "async")
SETTINGS = {
    "TOLLGATE_TRAINING_BACKEND": "local",
    "TOLLGATE_TRAINING_CAPACITY": "cpu=2,memory=1Gi,nodes=2",
    "TOLLGATE_TRAINING_STOP_GRACE_S": "1",
}
TIMEOUT_S = 200
TIER = "custom=1000000/1000000000"


@contextmanager
def running(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[tuple[Product, str, str]]:
    """Start a product that trains, and a model server. Yield the product, a key and the server's URL."""
    product = Product(directory / "data", workers=1, settings=SETTINGS | dict(settings or {}), async_workers=1)
    port = own_port()
    log = directory / "model.log"
    words = ("-m", "tests.model_server", "--port", str(port))
    server = spawn(words, product.environment | {"PYTHONUNBUFFERED": "1"}, log, (sys.executable,))
    try:
        assert ready_line(server), log.read_text()
        product.start()
        workspace = product.command("workspace", "create", "acme", "--prefix", "acme", "--tier", TIER)
        product.command("workspace", "set", "acme", "--training")
        yield product, workspace["api_key"], f"http://127.0.0.1:{port}"
    finally:
        product.kill()
        server.kill()
        server.communicate()


def outcomes(directory: Path, kinds: tuple[str, ...] = KINDS) -> list[dict[str, Any]]:
    """The outcome of each method, by these kinds of client."""
    with running(directory) as (product, api_key, replica):
        place = (product.control, product.proxy, api_key, replica)
        script = subprocess.run(
            [str(PYTHON), "-m", "tests.clients.original.script", *place, *kinds],
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "HOME": str(directory), "LANG": "C.UTF-8", **ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        (directory / "script.log").write_text(script.stderr)
        assert script.returncode == 0, f"{script.stderr}\n{product.log_tail()}"
        if script.stderr:
            print(script.stderr, file=sys.stderr)
    return [json.loads(line) for line in script.stdout.splitlines()]


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        results = outcomes(Path(directory))
    ORIGINAL_RESULTS.write_text(json.dumps(results, indent=1))
    lines = surprises(results)
    print("\n".join(lines))
    counts = [one["outcome"] for one in results]
    print(", ".join(f"{counts.count(outcome)} {outcome}" for outcome in dict.fromkeys(counts)))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
