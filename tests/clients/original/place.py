"""The product and a model server, as the steps reach them without the SDK."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.waiting import eventually

TOO_MANY = 429
WINDOW_S = 1.0
"""The window of a key's request limit at control."""


class Raw:
    """The product's API without the SDK: what the SDK cannot do, and the truth about what it did."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self.http = httpx.Client(base_url=base_url, headers={"Authorization": f"Bearer {api_key}"}, timeout=30)

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON of an answer that must be no error."""
        while (answer := self.http.request(method, path, json=body)).status_code == TOO_MANY:
            time.sleep(WINDOW_S)
        assert answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    def status(self, path: str) -> int:
        while (answer := self.http.get(path)).status_code == TOO_MANY:
            time.sleep(WINDOW_S)
        return answer.status_code

    def items(self, path: str, member: str) -> list[Any]:
        """One member of each item of a list."""
        return [item[member] for item in self("GET", path)["items"]]


def until(look: Callable[[], Any], what: str) -> Any:
    """Wait for a true result of `look`, which must not use the SDK."""
    return asyncio.run(eventually(look, what, every_s=0.05))


class Place:
    """A running product's control and proxy, with a workspace's key, and a model server that may be a replica."""

    def __init__(self, control: str, proxy: str, api_key: str, replica: str) -> None:
        self.control = Raw(control, api_key)
        self.proxy = Raw(proxy, api_key)
        self.control_url = control
        self.proxy_url = proxy
        self.api_key = api_key
        self.replica = replica

    def model(self, name: str) -> "Model":
        """Create a model by its name alone, as the SDK cannot, with one deployment."""
        id = self.control("POST", "/v1/models", {"name": name})["id"]
        deployment = self.control("POST", f"/v1/models/{id}/deployments", {"name": "first"})["id"]
        return Model(self, id, deployment)


class Model:
    """A platform model with one deployment."""

    def __init__(self, place: Place, id: str, deployment: str) -> None:
        self.place = place
        self.id = id
        self.deployment = deployment
        self.path = f"/v1/models/{id}"

    def serve(self) -> None:
        """List the model server as the deployment's only replica."""
        path = f"{self.path}/deployments/{self.deployment}/replicas"
        self.place.control("PUT", path, {"replicas": [self.place.replica]})

    def point(self, environment: str) -> None:
        """Make an environment's deployment this one."""
        path = f"{self.path}/environments/{environment}"
        self.place.control("PUT", path, {"deployment_id": self.deployment})

    def environment(self, name: str) -> Any:
        return self.place.control("GET", f"{self.path}/environments/{name}")
