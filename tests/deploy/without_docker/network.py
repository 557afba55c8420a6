"""A network of the services' own: a network namespace for each, an address, and a name in everybody's hosts file.

It exists in the network namespace of this process, which has no way to any other network.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

SUBNET = "10.213.0"
HERE = f"{SUBNET}.1"
"""Our own address: upstreams listen there, and the callers call from it."""
NAMESPACES = Path("/run/netns")


def connect(names: Sequence[str], hosts_file: Path) -> None:
    """Make a network namespace for each name, on one bridge, and write the hosts file."""
    addresses = {name: f"{SUBNET}.{number}" for number, name in enumerate(names, 10)}
    NAMESPACES.mkdir(exist_ok=True)
    subprocess.run(("mount", "-t", "tmpfs", "tmpfs", str(NAMESPACES)), check=True)
    _ip("link set lo up")
    _ip("link add services type bridge")
    _ip(f"addr add {HERE}/24 dev services")
    _ip("link set services up")
    for number, (name, address) in enumerate(addresses.items()):
        _ip(f"netns add {name}")
        _ip(f"link add port{number} type veth peer name eth0 netns {name}")
        _ip(f"link set port{number} master services up")
        _ip(f"-n {name} addr add {address}/24 dev eth0")
        _ip(f"-n {name} link set eth0 up")
        _ip(f"-n {name} link set lo up")
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    hosts_file.write_text("\n".join(lines) + "\n")


def address_of(name: str, hosts_file: Path) -> str:
    """The address that the hosts file has for a name."""
    lines = (line.split() for line in hosts_file.read_text().splitlines())
    return next(address for address, host in lines if host == name)


def _ip(words: str) -> None:
    subprocess.run(("ip", *words.split()), check=True)
