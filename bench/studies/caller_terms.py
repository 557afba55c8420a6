"""The CPU that the settings of a key cost a call, beside a key without: `python -m bench.studies.caller_terms`.

Checks the terms of one caller many times, on the exchange of a connection and with the clock of a worker.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from policy.keys.settings import KeySettings
from proxy.callers.caller_addresses import CallerAddresses, trusted_proxies
from proxy.callers.caller_terms import terms_of
from proxy.directory_values import Identified
from proxy.edges.http.connection import Connection
from proxy.edges.http.http_exchange import HttpExchange
from proxy.edges.http.request_head import ParsedHead
from proxy.edges.http.server import HttpServer
from proxy.edges.policy.recorded_time import LatestTime
from proxy.exchange import RequestContext
from proxy.stages.authenticate import Authenticate

TIMES = 100_000
ROUNDS = 9
FIELDS = {
    "authorization": "Bearer tg_" + "k" * 40,
    "content-type": "application/json",
    "user-agent": "OpenAI/Python 2.8.1",
}
END_MS = 4_000_000_000_000
NETWORKS = tuple(f"10.{number}.0.0/16" for number in range(99))
SLUGS = tuple(f"acme/{number}" for number in range(100))
KEYS = {
    "no settings": None,
    "an expiry": KeySettings(expires_at_ms=END_MS),
    "an expiry, 100 networks": KeySettings(expires_at_ms=END_MS, allowed_ips=(*NETWORKS, "192.0.2.0/24")),
    "an expiry, 100 networks, 100 slugs": KeySettings(
        expires_at_ms=END_MS, allowed_ips=(*NETWORKS, "192.0.2.0/24"), slugs=SLUGS
    ),
}


class Peer(asyncio.Transport):
    """The transport of a connection from this address."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 50_000)})


def exchange(peer: str, forwarded_for: str) -> HttpExchange:
    """A call of this peer, whose head was seen before."""
    server = HttpServer(cast("Any", None))
    server.loop = asyncio.get_event_loop_policy().get_event_loop()
    connection = Connection(server)
    connection.transport = Peer(peer)
    head = ParsedHead("POST", "/v1/chat/completions")
    head.first = FIELDS | ({"x-forwarded-for": forwarded_for} if forwarded_for else {})
    return HttpExchange(connection, head)


def checker(settings: KeySettings | None, peer: str, forwarded_for: str) -> Callable[[], None]:
    """The check of a recalled call, as the pipeline makes it, and that of its slug."""
    addresses = CallerAddresses(trusted_proxies("10.0.0.0/8"))
    directory = cast("Any", SimpleNamespace(caller=None))
    authenticate = Authenticate(directory, cast("Any", None), LatestTime((0,)).now_ms, addresses)
    identified = Identified(cast("Any", None), cast("Any", None), None, "", terms_of(settings))
    context = cast("RequestContext", SimpleNamespace(incoming=exchange(peer, forwarded_for), identified=None))
    checks_slug = settings is not None and settings.slugs is not None

    def check() -> None:
        if identified.terms is not None:
            authenticate.check_terms(context, identified, identified.terms)
        if checks_slug:
            assert identified.covers("acme/7")

    return check


def cost_us(check: Callable[[], None]) -> float:
    """The CPU of one call of `check`, less that of a function that does nothing."""
    return statistics.median(_seconds(check) - _seconds(lambda: None) for _ in range(ROUNDS)) / TIMES * 1e6


def _seconds(work: Callable[[], None]) -> float:
    started_s = time.process_time()
    for _ in range(TIMES):
        work()
    return time.process_time() - started_s


def main() -> None:
    asyncio.set_event_loop(asyncio.new_event_loop())
    print(f"Python {sys.version.split()[0]}, median of {ROUNDS} rounds of {TIMES} calls")
    for peer, forwarded_for in (("192.0.2.7", ""), ("10.0.0.1", "198.51.100.1, 192.0.2.7")):
        print(f"peer {peer}, X-Forwarded-For {forwarded_for or 'absent'}")
        for name, settings in KEYS.items():
            print(f"  {name:35}{cost_us(checker(settings, peer, forwarded_for)):6.2f} us")


if __name__ == "__main__":
    main()
