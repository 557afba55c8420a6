"""A machine that has no local port left sheds calls: `few_ports.py`, in a network namespace of its own.

Not collected where none can be made: only root may, and not in most containers.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.contracts.process.few_ports import FIRST_PORT, LAST_PORT
from tests.redis_server import REDIS_BINARIES

PREPARE = f"""
ip link set lo up &&
echo {FIRST_PORT} {LAST_PORT} > /proc/sys/net/ipv4/ip_local_port_range &&
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 || exit 1
exec "$@"
"""


def in_namespace(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a network namespace with few ports and without IPv6."""
    argv = ["unshare", "--net", "sh", "-c", PREPARE, "sh", *command]
    environ = os.environ | {"PYTEST_ADDOPTS": ""}
    return subprocess.run(argv, env=environ, check=False, capture_output=True, text=True, timeout=300)


def can_have_one() -> bool:
    tools = ("unshare", "ip")
    return all(shutil.which(tool) for tool in tools) and in_namespace("true").returncode == 0


__test__ = bool(REDIS_BINARIES) and can_have_one()


def test_machine_without_a_local_port_sheds_calls() -> None:
    file = Path(__file__).with_name("few_ports.py")
    ended = in_namespace(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4 passed" in ended.stdout, ended.stdout
