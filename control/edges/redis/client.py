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
    """One more try, for a kept connection that has died meanwhile. redis-py tries ten times, over many seconds; but all
    who ask here have something else to do when Redis is away, and should do it."""
    return {**_TIMEOUTS, "retry": Retry(ConstantBackoff(_RETRY_AFTER_S), 1)}


def connect(url: str) -> Redis:
    """For `unix://`, `redis://`, `rediss://`, `redis+cluster://` or `redis+sentinel://`; connects when used."""
    scheme, _, rest = url.partition("://")
    if scheme == "redis+cluster":
        # RedisCluster is no subclass of Redis, but has the commands that are used here.
        return RedisCluster.from_url(f"redis://{rest}", **_options())  # type: ignore[return-value]
    if scheme == "redis+sentinel":
        return _from_sentinels(url)
    return Redis.from_url(url, **_options())


def _from_sentinels(url: str) -> Redis:
    """`redis+sentinel://[:password@]host:port,host:port/service[/db]`."""
    parts = urlsplit(url)
    places, _, password = reversed(parts.netloc.rpartition("@"))
    hosts = [place.rpartition(":") for place in places.split(",")]
    service, _, db = parts.path.strip("/").partition("/")
    sentinels = [(host or port, int(port) if host else 26379) for host, _, port in hosts]
    secret = password.partition(":")[2] or None
    sentinel: Any = Sentinel(sentinels, sentinel_kwargs=_TIMEOUTS, password=secret, **_options())  # type: ignore[no-untyped-call]  # redis-py has no types here
    master: Redis = sentinel.master_for(service or "mymaster", db=int(db or 0))
    return master
