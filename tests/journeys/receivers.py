"""A customer's webhook receivers on TLS, and the settings that let the product trust and resolve them."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from standardwebhooks import Webhook

from tests.fakes.throwaway_ca import ThrowawayCa
from tests.ports import is_held, own_port
from tests.waiting import eventually

DOMAIN = "hooks.example.com"


@dataclass(frozen=True)
class ReceivedMessage:
    """One message as received."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def events(self) -> list[Any]:
        return list(orjson.loads(self.body)["data"]["events"])

    def verified(self, secret: str) -> Any:
        """Return the parsed message. Raises WebhookVerificationError unless it is signed with this secret."""
        return Webhook(secret).verify(self.body, dict(self.headers))


@dataclass
class Receiver:
    """A receiver that records its messages. With `status` None it never answers."""

    name: str
    status: int | None = 200
    response_delay_s: float = 0.0
    messages: list[ReceivedMessage] = field(default_factory=list)
    port: int = field(default_factory=own_port)

    @property
    def host(self) -> str:
        return f"{self.name}.{DOMAIN}"

    @property
    def url(self) -> str:
        return f"https://{self.host}/in"

    @property
    def link(self) -> str:
        return f"{self.host}=127.0.0.1:{self.port}"

    @property
    def events(self) -> list[Any]:
        """The events of all messages, including repeated ones."""
        return [event for one in self.messages for event in one.events]

    def by_id(self) -> dict[str, list[ReceivedMessage]]:
        messages = defaultdict(list)
        for one in self.messages:
            messages[one.id].append(one)
        return messages

    async def start(self, ca: ThrowawayCa) -> None:
        app = web.Application(client_max_size=200_000_000)
        app.router.add_post("/in", self._receive)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=ca.server_context(self.host)).start()

    async def stop(self) -> None:
        await self._runner.cleanup()
        # A TLS connection is open until its peer has closed it too, and on a busy machine the product does so late.
        await eventually(lambda: not is_held(self.port), f"every connection of {self.name} is closed")

    async def _receive(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.messages.append(ReceivedMessage(headers, await request.read()))
        if self.status is None:
            await asyncio.Event().wait()
        await asyncio.sleep(self.response_delay_s)
        return web.Response(status=self.status or 200)


@dataclass
class Customer:
    """Receivers, and the settings with which the product reaches them."""

    ca: ThrowawayCa
    receivers: list[Receiver] = field(default_factory=list)

    @classmethod
    async def with_receivers(cls, directory: Path, *names: str) -> "Customer":
        customer = cls(ThrowawayCa(directory), [Receiver(name) for name in names])
        for one in customer.receivers:
            await one.start(customer.ca)
        return customer

    @property
    def settings(self) -> dict[str, str]:
        links = [one.link for one in self.receivers]
        return {
            "TOLLGATE_EGRESS_ALLOW": ",".join(["127.0.0.0/8", *links]),
            "TOLLGATE_EGRESS_CA_FILE": str(self.ca.ca_file),
        }

    async def stop(self) -> None:
        for one in self.receivers:
            await one.stop()
