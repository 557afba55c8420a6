"""Tests of what a worker loads at its start: each of its processes would take this memory again."""

import subprocess
import sys

_LOADED = """
import sys
import proxy.edges.process.log_writer, proxy.settings, proxy.worker.app
print([name for name in ("aiohttp", "redis", "opentelemetry", "prometheus_client") if name in sys.modules])
"""


def test_a_worker_loads_no_library_that_only_rare_requests_need() -> None:
    """aiohttp takes 11 MB, the client of the queue of asynchronous requests 22 MB."""
    result = subprocess.run([sys.executable, "-c", _LOADED], check=True, capture_output=True, text=True, timeout=60)
    assert result.stdout == "[]\n"
