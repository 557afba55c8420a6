"""Control's connection to Redis, from TOLLGATE_REDIS_URL in any of its forms: for hints, throttling and usage."""

from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import ConstantBackoff

_TIMEOUTS: dict[str, Any] = {"socket_timeout": 2.0, "socket_connect_timeout": 2.0}
_RETRY_AFTER_S = 0.05


def _options() -> dict[str, Any]:
    """One retry, for a pooled connection that has died. redis-py's default is ten retries over many seconds; every
    caller here has a fallback and should use it sooner."""
    return {**_TIMEOUTS, "retry": Retry(ConstantBackoff(_RETRY_AFTER_S), 1)}


def connect(url: str) -> Redis:
    """A client for `unix://`, `redis://`, `rediss://`, `redis+cluster://` or `redis+sentinel://`; connects on use."""
    scheme, _, rest = url.partition("://")
    if scheme == "redis+cluster":
        # RedisCluster is not a subclass of Redis, but has the commands used here.
        return RedisCluster.from_url(f"redis://{rest}", **_options())  # type: ignore[return-value]
    if scheme == "redis+sentinel":
        return _from_sentinels(url)
    return Redis.from_url(url, **_options())


def _from_sentinels(url: str) -> Redis:
    """`redis+sentinel://[:password@]host:port,host:port/service[/db]`."""
    parts = urlsplit(url)
    addresses, _, password = reversed(parts.netloc.rpartition("@"))
    hosts = [address.rpartition(":") for address in addresses.split(",")]
    service, _, db = parts.path.strip("/").partition("/")
    sentinels = [(host or port, int(port) if host else 26379) for host, _, port in hosts]
    secret = password.partition(":")[2] or None
    sentinel: Any = Sentinel(sentinels, sentinel_kwargs=_TIMEOUTS, password=secret, **_options())  # type: ignore[no-untyped-call]  # redis-py has no types here
    master: Redis = sentinel.master_for(service or "mymaster", db=int(db or 0))
    return master
