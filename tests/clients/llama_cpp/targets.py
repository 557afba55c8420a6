"""A product with slugs for llama.cpp's server: at each provider, and as servers that speak a single dialect."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from tests.clients.llama_cpp.server import MODEL
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.journeys.conftest import Stage, Workspace, stage_of
from tests.journeys.product import Product
from tests.upstream import Behaviour, Exchange, ScriptedUpstream, answer_json, in_thread

DIRECT = ("PLATFORM", "VENDOR_A", "VENDOR_B")
"""Providers whose address may be the server's own. It speaks every dialect: PLATFORM passes all calls."""
RELAYED = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
"""Hosts of VENDOR_B_COMPATIBLE targets, with the only path that each of them has."""
TARGETS = (*DIRECT, *RELAYED)


@dataclass
class Site:
    """A server and a product with slugs for it."""

    url: str
    workspace: Workspace


@dataclass
class Scenario:
    site: Site
    stage: Stage
    key: str = ""

    def slug(self, target: str) -> str:
        return f"acme/{target.lower()}"

    async def billed(self, calls: int = 1) -> dict[str, int]:
        """The tokens of all events, without the cached input: the server caches what a direct call asked before."""
        events = await self.stage.events_of(self.stage.name, calls)
        assert len(events) == calls
        return {name: sum(event["tokens"][name] for event in events) for name in ("inputTokens", "outputTokens")}


@contextmanager
def site_of(url: str, place: Path) -> Iterator[Site]:
    """Start the product, and relays that terminate TLS."""
    place.mkdir()
    ca = ThrowawayCa(place)
    with ExitStack() as stack:
        links = []
        for name, path in RELAYED.items():
            relay = ScriptedUpstream(tls=ca.server_context(host_of(name)), default=relayed(url, path))
            links.append(f"{host_of(name)}=127.0.0.1:{stack.enter_context(in_thread(relay)).port}")
        settings = {"TOLLGATE_VENDOR_A_BASE_URL": url, "TOLLGATE_VENDOR_B_BASE_URL": url}
        settings |= {"TOLLGATE_EGRESS_ALLOW": ",".join(["127.0.0.0/8", *links])}
        settings |= {"TOLLGATE_EGRESS_CA_FILE": str(ca.ca_file)}
        product = Product(place / "data", workers=1, settings=settings)
        stack.callback(product.kill)
        product.start()
        yield Site(url, Workspace(product))


def host_of(name: str) -> str:
    return f"{name}.llama.example.com"


def relayed(url: str, path: str) -> Behaviour:
    """Pass requests to this path to the server, byte for byte; any other path is not found."""
    address = urlsplit(url)

    async def behaviour(exchange: Exchange) -> None:
        body = await exchange.read_body()
        received = exchange.received
        if received.path != path:
            await answer_json(404, {"detail": "Not Found"})(exchange)
            return
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        lines = [f"{name}: {value}" for name, value in received.headers if name != "connection"]
        head = "\r\n".join([f"{received.method} {received.target} HTTP/1.1", *lines, "connection: close", "", ""])
        writer.write(head.encode() + body)
        while data := await reader.read(65_536):
            await exchange.send(data)
        writer.close()
        exchange.close()

    return behaviour


async def scenario_of(site: Site, session: aiohttp.ClientSession, name: str) -> Scenario:
    """Create the endpoints once, and a group with a key for this test."""
    scenario = Scenario(site, stage_of(site.workspace, session, ScriptedUpstream(), name))
    operator = scenario.stage.operator
    _, listed = await operator.ask("GET", "/v1/gateway/endpoints")
    if not listed["items"]:
        secret = await operator.call("POST", "/v1/secrets", {"name": "llama", "value": "any"})
        vendor = {"secret_id": secret["id"]}
        targets: dict[str, dict[str, Any]] = {name: vendor | {"provider": name} for name in DIRECT}
        targets["PLATFORM"] = {"provider": "PLATFORM", "model_id": await operator.model("llama", site.url)}
        for host in RELAYED:
            base = {"provider": "VENDOR_B_COMPATIBLE", "base_url": f"https://{host_of(host)}/v1"}
            targets[host] = vendor | base
        for target, members in targets.items():
            body = {"slug": scenario.slug(target), "targets": [members | {"target_model": MODEL}]}
            await operator.call("POST", "/v1/gateway/endpoints", body)
    group = await operator.group(name, [{"slug": scenario.slug(target)} for target in TARGETS])
    scenario.key = await operator.key(group)
    return scenario
