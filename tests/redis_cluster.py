"""A private Redis Cluster for tests: real servers on loopback, in temporary directories, removed when the test ends.

Needs Redis 7: the servers' bus has a port of its own choice.
"""

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.crc import key_slot

from tests.ports import HOST, own_port
from tests.redis_server import REDIS_BINARIES, RedisServer

SLOTS = 16_384
NODE_TIMEOUT_MS = 1_000
"""The time for which a node may be silent before the others replace it."""
PATIENT_MS = 15_000
"""The same for tests in which no node dies: on a busy machine a healthy one may be silent for a second."""
_FORM_TIMEOUT_S = 30
_GIVEN_UP_S = 6
"""A replica that did not get the votes in 5 s gives up, and has to be asked again."""


def speaks_cluster(binary: str) -> bool:
    """Return whether the server is new enough."""
    text = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True).stdout
    return int(text.partition("v=")[2].partition(".")[0]) >= 7


CLUSTER_BINARY = next(filter(speaks_cluster, REDIS_BINARIES), None)
MISSING = "no redis-server of version 7 or newer (Debian: apt-get install redis-server)"


@dataclass
class ClusterNode:
    """One server. `id`: its name in the cluster."""

    server: RedisServer
    port: int
    id: str = ""

    @property
    def redirects(self) -> int:
        """The number of commands that it has sent to another node for good."""
        with self.server.client() as client:
            return int(client.info("errorstats").get("errorstat_MOVED", {"count": 0})["count"])

    def run(self, *command: str | int) -> Any:
        return self.server.run(*command)


@dataclass
class RedisCluster:
    """A running cluster. `primaries` and `replicas`: as it was formed; replica i follows primary i."""

    primaries: list[ClusterNode]
    replicas: list[ClusterNode]

    @property
    def nodes(self) -> list[ClusterNode]:
        return self.primaries + self.replicas

    @property
    def hosts(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    @property
    def url(self) -> str:
        return f"redis+cluster://{self.hosts}"

    def owner(self, slot: int) -> ClusterNode:
        """The node that serves the slot, as the first living node sees it."""
        for first, last, (_, port, *_), *_ in self._living().run("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise LookupError(f"no node serves slot {slot}")

    def owner_of(self, key: str) -> ClusterNode:
        return self.owner(key_slot(key.encode()))

    def slots_with_keys(self, node: ClusterNode) -> set[int]:
        """The slots of the node that have keys."""
        return {key_slot(key) for key in node.run("KEYS", "*")}

    def begin_move(self, slot: int, target: ClusterNode) -> ClusterNode:
        """Keys that the slot gets from now on go to the target (ASK). Returns the node that still owns it."""
        source = self.owner(slot)
        target.run("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.run("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        return source

    def move_keys(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        while keys := source.run("CLUSTER", "GETKEYSINSLOT", slot, 100):
            login = ("AUTH", target.server.password) if target.server.password else ()
            source.run("MIGRATE", HOST, target.port, "", 0, 5000, *login, "KEYS", *keys)

    def end_move(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        for node in (target, source, *self.primaries):
            if node.server.answers:
                node.run("CLUSTER", "SETSLOT", slot, "NODE", target.id)

    def move(self, slot: int, target: ClusterNode) -> None:
        """Reshard one slot, as `redis-cli --cluster reshard` does."""
        source = self.begin_move(slot, target)
        self.move_keys(slot, source, target)
        self.end_move(slot, source, target)

    def fail_over(self, replica: ClusterNode) -> None:
        """The replica becomes the primary, in agreement with its primary. Returns when every node knows it."""
        primary_port = replica.run("ROLE")[2]
        asked_at = float("-inf")

        def is_known() -> bool:
            nonlocal asked_at
            if time.monotonic() - asked_at > _GIVEN_UP_S and replica.run("ROLE")[0] != b"master":
                replica.run("CLUSTER", "FAILOVER")
                asked_at = time.monotonic()
            return not any(_serves(node, primary_port) for node in self.nodes)

        wait_for(is_known, "the fail-over is not known")

    def wait_for_replacement(self, dead: ClusterNode) -> None:
        """Wait until the others have replaced a node that died."""
        wait_for(lambda: not any(_serves(node, dead.port) for node in self.nodes), "nobody replaces the dead node")

    def _living(self) -> ClusterNode:
        return next(node for node in self.nodes if node.server.answers)


def wait_for(condition: Callable[[], bool], trouble: str) -> None:
    deadline = time.monotonic() + _FORM_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(trouble)
        time.sleep(0.02)


@contextmanager
def running_cluster(
    primaries: int = 3,
    replicas: int = 1,
    options: Sequence[str] = (),
    password: str = "",
    node_timeout_ms: int = NODE_TIMEOUT_MS,
) -> Iterator[RedisCluster]:
    """`replicas`: 0 or 1 for each primary. `options`: further options of each server. `password`: the default user's;
    servers use it among each other too."""
    with ExitStack() as stack:
        more = ["--cluster-node-timeout", str(node_timeout_ms), *options]
        nodes = [_started(stack, more, password) for _ in range(primaries * (1 + replicas))]
        cluster = RedisCluster(nodes[:primaries], nodes[primaries:])
        _form(cluster)
        yield cluster


def _started(stack: ExitStack, options: list[str], password: str) -> ClusterNode:
    if CLUSTER_BINARY is None:
        raise FileNotFoundError(MISSING)
    port = own_port()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg-redis-")))
    listens = ["--tls-port" if "--tls-cluster" in options else "--port", str(port), "--bind", HOST]
    own = ["--cluster-enabled", "yes", "--cluster-port", str(own_port()), "--cluster-config-file", "nodes.conf",
           "--cluster-require-full-coverage", "no",
           "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]  # fmt: skip
    login = ["--requirepass", password, "--masterauth", password] if password else []
    server = RedisServer(folder, [*listens, *own, *login, *options], CLUSTER_BINARY, password)
    server.start()
    stack.callback(server.kill)
    node = ClusterNode(server, port)
    node.id = node.run("CLUSTER", "MYID").decode()
    return node


def _form(cluster: RedisCluster) -> None:
    for number, node in enumerate(cluster.nodes, 1):
        node.run("CLUSTER", "SET-CONFIG-EPOCH", number)
    share = -(-SLOTS // len(cluster.primaries))
    for number, node in enumerate(cluster.primaries):
        node.run("CLUSTER", "ADDSLOTSRANGE", number * share, min(SLOTS, (number + 1) * share) - 1)
    for node in cluster.nodes:
        bus_port = node.run("CONFIG", "GET", "cluster-port")[b"cluster-port"].decode()
        for other in cluster.nodes:
            other.run("CLUSTER", "MEET", HOST, node.port, bus_port)
    everyone = len(cluster.nodes)
    wait_for(lambda: all(_knows(node, everyone) for node in cluster.nodes), "the nodes do not find each other")
    for replica, primary in zip(cluster.replicas, cluster.primaries, strict=False):
        replica.run("CLUSTER", "REPLICATE", primary.id)
    wait_for(lambda: all(_is_ready(node, cluster) for node in cluster.nodes), "the cluster does not become ready")


def _knows(node: ClusterNode, nodes: int) -> bool:
    text: bytes = node.run("CLUSTER", "NODES")
    return text.count(b" connected") == nodes


def _serves(node: ClusterNode, port: int) -> bool:
    """Return whether the node believes that the primary at the port serves slots."""
    return node.server.answers and any(entry[2][1] == port for entry in node.run("CLUSTER", "SLOTS"))


def _is_ready(node: ClusterNode, cluster: RedisCluster) -> bool:
    """Return whether the node serves and knows every replica as one; a replica also has its primary's data.

    A primary refuses commands for two seconds after its start, to learn what the others know.
    """
    slots = node.run("CLUSTER", "SLOTS")
    agrees = len(slots) == len(cluster.primaries) and all(
        len(entry) == 3 + (1 if cluster.replicas else 0) for entry in slots
    )
    if b"cluster_state:ok" not in node.run("CLUSTER", "INFO"):
        return False
    role = node.run("ROLE")
    agrees = agrees and b"cluster_state:ok" in node.run("CLUSTER", "INFO")
    return agrees and (role[0] == b"master" or role[3] == b"connected")
