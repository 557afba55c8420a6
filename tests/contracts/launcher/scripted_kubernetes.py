"""The part of the Kubernetes API that the scaler uses, over TLS: one Deployment's scale, its pods, and nothing else."""

import ssl
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.fakes.throwaway_ca import ThrowawayCa
from tests.ports import own_port

NAMESPACE = "models"
TARGET = "model"
TOKEN = "service-account-token"
SCALE = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{TARGET}/scale"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SELECTOR = "app=model"


class ScriptedKubernetes:
    """Pods follow the scale at once and are ready when a test says so. Anything beyond the Role's rights is 403."""

    def __init__(self, directory: Path) -> None:
        self.account = directory / "account"
        self.account.mkdir()
        ca = ThrowawayCa(self.account)
        ca.ca_file.rename(self.account / "ca.crt")
        (self.account / "token").write_text(TOKEN + "\n")
        (self.account / "namespace").write_text(NAMESPACE)
        self._context: ssl.SSLContext = ca.server_context("127.0.0.1")
        self.port = own_port()
        self.replicas = 0
        self.pods: dict[str, dict[str, Any]] = {}
        self.scales: list[int] = []
        self.forbidden: list[str] = []
        self.is_away = False
        self.pod_address = ""
        """Address of all pods; made up if empty."""
        self._number = 0
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "ScriptedKubernetes":
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._context).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()
        assert self.forbidden == [], "the scaler asks for more than its Role allows"

    def become_ready(self) -> list[str]:
        """All pods are ready; returns their URLs."""
        for pod in self.pods.values():
            pod["status"]["conditions"] = [
                {"type": "Initialized", "status": "True"},
                {"type": "Ready", "status": "True"},
            ]
        return [f"http://{pod['status']['podIP']}:8000" for pod in self.pods.values()]

    def crash(self, reason: str) -> None:
        """No pod can start."""
        state = {"waiting": {"reason": reason, "message": "back-off 5m0s"}}
        last = {"terminated": {"reason": "OOMKilled"}}
        for pod in self.pods.values():
            pod["status"]["containerStatuses"] = [{"state": state, "lastState": last}]

    def _set_scale(self, replicas: int) -> None:
        self.replicas = replicas
        self.scales.append(replicas)
        while len(self.pods) < replicas:
            self._number += 1
            name = f"model-{self._number}"
            address = self.pod_address or f"10.1.0.{self._number}"
            status = {"podIP": address, "conditions": [{"type": "Ready", "status": "False"}]}
            self.pods[name] = {"metadata": {"name": name}, "status": status}
        for name in list(self.pods)[replicas:]:
            self.pods[name]["metadata"]["deletionTimestamp"] = "2026-11-22T08:00:00Z"

    async def _answer(self, request: web.Request) -> web.Response:
        if self.is_away:
            return web.json_response({"message": "etcdserver: leader changed"}, status=500)
        if request.headers.get("authorization") != f"Bearer {(self.account / 'token').read_text().strip()}":
            return web.json_response({"message": "Unauthorized"}, status=401)
        match request.method, request.path:
            case "GET", str(path) if path == SCALE:
                pass
            case "PATCH", str(path) if path == SCALE:
                assert request.content_type == "application/merge-patch+json"
                self._set_scale((await request.json())["spec"]["replicas"])
            case "GET", str(path) if path == PODS and request.query.get("labelSelector") == SELECTOR:
                return web.json_response({"kind": "PodList", "items": list(self.pods.values())})
            case method, path:
                self.forbidden.append(f"{method} {path}")
                return web.json_response({"message": "forbidden"}, status=403)
        spec = {"replicas": self.replicas} if self.replicas else {}  # a zero is left out
        return web.json_response({"kind": "Scale", "spec": spec, "status": {"replicas": 0, "selector": SELECTOR}})
