"""Control's connection to Redis, from TOLLGATE_REDIS_URL in any of its forms: for hints, throttling and usage."""

from runtime.redis.node_clients import RedisOptions
from runtime.redis.routed import RoutedRedis


def connect(url: str) -> RoutedRedis:
    """Connects on use. Raises ValueError for a URL that cannot be read.

    One retry, for a pooled connection that has died: every caller here has a fallback, and should use it soon.
    """
    return RoutedRedis(url, RedisOptions(socket_timeout_s=2.0, retries=1))
