"""A running product whose providers are all scripted vendors, a slug per client, and a way to re-point them all."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from policy.endpoints import PROVIDERS as TABLE
from tests.clients.catalogue import PROVIDERS, Client, Provider
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.journeys.product import OperatorClient, Product
from tests.upstream import ScriptedUpstream
from tests.upstream.dialects.vendor import ScriptedVendor, Served
from tests.upstream.vendors import CREDENTIAL, service_account

PROBE = "acme/probe"
TIER = "custom=1000000/1000000000"


@dataclass
class Upstream:
    """A scripted vendor and where it listens."""

    vendor: ScriptedVendor
    server: ScriptedUpstream

    def served(self, model: str) -> list[Served]:
        """The requests for one model, in their order."""
        return [served for served in self.vendor.served if served.body.get("model") == model]


@dataclass
class Stage:
    product: Product
    operator: OperatorClient
    session: aiohttp.ClientSession
    upstreams: Mapping[str, Upstream]
    """The scripted vendors by the provider's name in the catalogue."""
    direct: Upstream
    """A vendor that the clients also call without Tollgate."""
    began: str
    targets: dict[str, dict[str, Any]] = field(default_factory=dict)
    endpoints: dict[str, str] = field(default_factory=dict)
    """The endpoint of each slug."""
    keys: dict[str, str] = field(default_factory=dict)

    async def create(self, clients: list[Client]) -> None:
        """A target per provider; a slug, a group and a key per client."""
        for provider in PROVIDERS:
            self.targets[provider.name] = await self._target(provider)
        names = ["probe", *(client.name for client in clients)]
        for name in names:
            targets = [self.targets["B"] | {"target_model": name}]
            body = {"slug": slug_of(name), "targets": targets}
            self.endpoints[name] = (await self.operator.call("POST", "/v1/gateway/endpoints", body))["id"]
            self.keys[name] = await self.operator.key(await self.operator.group(name, [{"slug": slug_of(name)}]))

    async def _target(self, provider: Provider) -> dict[str, Any]:
        upstream = self.upstreams[provider.name]
        target: dict[str, Any] = {"provider": provider.provider}
        if provider.provider == "PLATFORM":
            return target | {"model_id": await self.operator.model("platform", upstream.server.url)}
        value = service_account(upstream.server.url) if provider.provider == "VENDOR_C" else CREDENTIAL
        name = provider.name.replace(", ", "-").replace(" ", "-")
        secret = await self.operator.call("POST", "/v1/secrets", {"name": name, "value": value})
        target["secret_id"] = secret["id"]
        if provider.provider == "VENDOR_C":
            target["vendor_c_config"] = {"project_id": "p", "location": "l"}
        return target | ({"base_url": f"https://{provider.host}/v1"} if provider.host else {})

    async def point(self, provider: Provider) -> None:
        """Point every slug at a provider, and return once the proxy does so."""
        for name in [*(name for name in self.endpoints if name != "probe"), "probe"]:
            targets = [self.targets[provider.name] | {"target_model": name}]
            await self.operator.call("PATCH", f"/v1/gateway/endpoints/{self.endpoints[name]}", {"targets": targets})
        upstream = self.upstreams[provider.name]
        deadline = time.monotonic() + 30
        while not upstream.server.received:
            assert time.monotonic() < deadline, f"the slugs do not lead to {provider.name}\n{self.product.log_tail()}"
            await self._probe()

    async def _probe(self) -> None:
        body = {"model": slug_of("probe"), "messages": [{"role": "user", "content": "Hi"}]}
        headers = {"authorization": f"Bearer {self.keys['probe']}"}
        url = self.product.proxy + "/v1/chat/completions"
        async with self.session.post(url, json=body, headers=headers) as answer:
            await answer.read()
        await asyncio.sleep(0.2)

    async def billed(self, client: Client) -> list[dict[str, int]]:
        """The tokens of each of the client's billed calls so far, in their order."""
        events = await self.operator.events(client.name, self.began, limit=1000)
        ordered = sorted(events, key=lambda event: (event["timestamp"], event["idempotencyKey"]))
        return [event["tokens"] for event in ordered if any(event["tokens"].values())]


def slug_of(name: str) -> str:
    return f"acme/{name}"


@asynccontextmanager
async def staged(directory: Path, clients: list[Client]) -> AsyncIterator[Stage]:
    """Start the vendors and the product; stop them at the end."""
    ca = ThrowawayCa(directory)
    async with AsyncExitStack() as stack:
        upstreams = {provider.name: await _upstream(provider, ca, stack) for provider in PROVIDERS}
        direct = Upstream(vendor := ScriptedVendor(), await stack.enter_async_context(ScriptedUpstream(default=vendor)))
        product = Product(directory / "data", workers=1, settings=_settings(upstreams, ca))
        stack.callback(product.kill)
        await asyncio.to_thread(product.start)
        workspace = product.command("workspace", "create", "acme", "--prefix", "acme", "--tier", TIER)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        operator = OperatorClient(session, product, workspace["api_key"])
        stage = Stage(product, operator, session, upstreams, direct, began)
        await stage.create(clients)
        yield stage


async def _upstream(provider: Provider, ca: ThrowawayCa, stack: AsyncExitStack) -> Upstream:
    vendor = ScriptedVendor(speaks=provider.speaks, needs_credential=provider.provider != "PLATFORM")
    tls = ca.server_context(provider.host) if provider.host else None
    return Upstream(vendor, await stack.enter_async_context(ScriptedUpstream(default=vendor, tls=tls)))


def _settings(upstreams: Mapping[str, Upstream], ca: ThrowawayCa) -> dict[str, str]:
    links = [f"{one.host}=127.0.0.1:{upstreams[one.name].server.port}" for one in PROVIDERS if one.host]
    settings = {"TOLLGATE_EGRESS_ALLOW": ",".join(["127.0.0.0/8", *links]), "TOLLGATE_EGRESS_CA_FILE": str(ca.ca_file)}
    for provider in PROVIDERS:
        if (base_url := TABLE[provider.provider].base_url) is not None:
            settings[base_url.setting] = upstreams[provider.name].server.url
    return settings
