"""The choice of the kind of `RedisNodes` that serves a URL."""

from proxy.edges.redis.nodes.cluster import ClusterNodes
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from proxy.edges.redis.nodes.redis_node import RedisNodes
from proxy.edges.redis.nodes.single import SingleNode
from runtime.redis.url import RedisUrl, Topology


def nodes_of(url: RedisUrl, options: RedisClientOptions) -> RedisNodes:
    return ClusterNodes(url, options) if url.topology is Topology.CLUSTER else SingleNode(url, options)
