"""A control plane that runs in the test's event loop, and a client that calls it over a real socket."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from control.api.protocol.dependencies import DEPENDENCIES
from control.app import LIMITS, build
from control.edges.sql.store import Store
from control.resources.spend.balance_source import BalanceSource
from control.resources.spend.group_spend import SpendSource
from control.resources.workspaces import create_workspace
from control.settings import Settings
from runtime.http.server import FrontLimits, FrontRunner

TOKEN = "internal-token-of-the-tests"
METRICS_TOKEN = "metrics-token-of-the-tests"
SECRET_KEYS = (base64.b64decode("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="),)
Json = dict[str, Any]
SLUG = "acme/chat"


@dataclass
class Answer:
    """A response: status, body (JSON or text) and headers."""

    status: int
    body: Any
    headers: Any

    def ok(self) -> Any:
        assert self.status == 200, (self.status, self.body)
        return self.body

    def refused(self, status: int, code: str | None = None, field: str | None = None) -> Json:
        """The error, of this code if one is given, that names this field first if one is given."""
        assert self.status == status, (self.status, self.body)
        assert code is None or self.body["code"] == code, self.body
        assert field is None or self.body["details"][0]["field"] == field, self.body
        assert isinstance(self.body["error"], str)
        assert self.body["message"] == self.body["error"], self.body
        body: Json = self.body
        return body


@dataclass
class ControlPlane:
    """One running control plane, with the key of workspace `acme`."""

    client: "TestClient[web.Request, web.Application]"
    store: Store
    key: str
    workspace_id: str

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        headers = {"Authorization": f"Bearer {more.pop('key', self.key)}", **more.pop("headers", {})}
        arguments = {"json": body} if body is not None else {}
        async with self.client.request(method, path, headers=headers, **arguments, **more) as answer:
            is_json = answer.content_type == "application/json"
            content = await answer.json() if is_json else await answer.text()
            return Answer(answer.status, content, answer.headers)

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.call("GET", path, **more)

    async def post(self, path: str, body: Any = None, **more: Any) -> Answer:
        return await self.call("POST", path, body, **more)

    async def patch(self, path: str, body: Any, **more: Any) -> Answer:
        return await self.call("PATCH", path, body, **more)

    async def put(self, path: str, body: Any, **more: Any) -> Answer:
        return await self.call("PUT", path, body, **more)

    async def delete(self, path: str, **more: Any) -> Answer:
        return await self.call("DELETE", path, **more)

    async def another_workspace(self, name: str = "other", prefix: str = "other", onboarded: bool = True) -> Json:
        return await create_workspace(self.store, name, [prefix], onboarded=onboarded)

    async def secret(self, name: str = "vendor") -> str:
        answer = await self.post("/v1/secrets", {"name": name, "value": "sk-upstream"})
        secret_id: str = answer.ok()["id"]
        return secret_id

    async def group(self, entity: str, parent: str | None = None, **more: Any) -> Json:
        return (await self.try_group(entity, parent, **more)).ok()  # type: ignore[no-any-return]  # JSON

    async def try_group(self, entity: str, parent: str | None = None, **more: Any) -> Answer:
        hierarchy = {"parent_group_id": parent} if parent else {}
        if "mode" in more:
            hierarchy["limit_enforcement"] = more["mode"]
        models = more.get("models", [{"slug": SLUG}])
        body: Json = {"metadata": {"external_entity_id": entity}, "models": models, "hierarchy": hierarchy}
        if "spend_limits" in more:
            body["spend_limits"] = more["spend_limits"]
        return await self.post("/v1/gateway/groups", body)


def rate(threshold: Any, type: str = "REQUEST", unit: str = "MINUTE", slug: str = SLUG) -> Json:
    """An entry of `models` with one rate limit."""
    return {"slug": slug, "rate_limits": [{"type": type, "unit": unit, "threshold": threshold}]}


def settings_on(database_url: str, **more: Any) -> Settings:
    keys = more.pop("secret_keys", SECRET_KEYS)
    return Settings(
        database_url=database_url, internal_token=TOKEN, metrics_token=METRICS_TOKEN, secret_keys=keys, **more
    )


class _PlaneServer(TestServer):
    """The application behind the same HTTP server as in `python -m control`."""

    def __init__(self, app: web.Application, limits: FrontLimits) -> None:
        super().__init__(app)
        self._limits = limits

    async def _make_runner(self, **_kwargs: Any) -> FrontRunner:
        return FrontRunner(self.app, self._limits)


@asynccontextmanager
async def running_plane(database_url: str, prefix: str = "acme", **more: Any) -> AsyncIterator[ControlPlane]:
    """`limits`: of its listener. `spend`, `balances`: instead of its own counters. Everything else is a setting."""
    limits: FrontLimits = more.pop("limits", LIMITS)
    spend: SpendSource | None = more.pop("spend", None)
    balances: BalanceSource | None = more.pop("balances", None)
    app = build(settings_on(database_url, **more))
    if spend is not None:
        app[DEPENDENCIES] = replace(app[DEPENDENCIES], spend=spend)
    if balances is not None:
        app[DEPENDENCIES] = replace(app[DEPENDENCIES], balances=balances)
    async with TestClient(_PlaneServer(app, limits)) as client:
        store = app[DEPENDENCIES].store
        workspace = await create_workspace(store, f"workspace {prefix}", [prefix])
        yield ControlPlane(client, store, workspace["api_key"], workspace["workspace_id"])
