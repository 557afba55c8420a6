"""Control's connection to Redis, from TOLLGATE_REDIS_URL in any of its forms: for hints, throttling and usage."""

from runtime.redis.node_clients import RedisOptions
from runtime.redis.routed import RoutedRedis

TIMEOUT_S = 2.0
"""The time within which a server has to answer."""


def connect(url: str) -> RoutedRedis:
    """Connects on use. Raises ValueError for a URL that cannot be read.

    One retry, for a pooled connection that has died: every caller here has a fallback, and should use it soon.
    """
    return RoutedRedis(url, RedisOptions(socket_timeout_s=TIMEOUT_S, retries=1))
