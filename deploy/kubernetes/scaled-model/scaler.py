"""Scales a Kubernetes Deployment of model servers for Tollgate: up on wake hooks and by load, down to zero when idle.

Standard library only, so that it runs in a stock Python image. It uses two public APIs: Tollgate's management API, and
of Kubernetes the scale of one Deployment and the list of its pods. README.md in this folder says how to install it.
"""

import hmac
import http.client
import json
import os
import signal
import ssl
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
TIMEOUT_S = 10.0
TICK_S = 1.0
SETTLE_S = 3.0
"""Proxies learn of a changed list within a second. Pods take calls for this long after they left it."""
CALLS_PER_REPLICA = 8
"""Calls that one pod is expected to run when the deployment has no `max_concurrency`."""
STUCK_S = 300.0
"""The time without a ready pod, and with a pod that cannot start, after which the deployment is FAILED."""
STUCK_REASONS = (
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
)
MAX_BODY_BYTES = 65_536
REQUIRED = (
    *("TOLLGATE_URL", "TOLLGATE_API_KEY", "MODEL_ID", "DEPLOYMENT_ID", "WAKE_SECRET", "HOOK_URL", "TARGET"),
    *("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"),
)


def say(text: str) -> None:
    print(f"scaler: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Settings:
    """Settings from the environment of the pod; see scaler.yaml."""

    tollgate_url: str
    api_key: str = field(repr=False)
    model_id: str
    deployment_id: str
    hook_url: str
    """The address at which control reaches this program, without the secret path."""
    wake_secret: str = field(repr=False)
    hook_port: int
    kubernetes_url: str
    account: Path
    """Namespace, token and CA certificate of the service account."""
    target: str
    """The Kubernetes Deployment."""
    pod_port: int
    health_path: str
    max_replicas: int
    idle_timeout_s: float
    stuck_s: float

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Settings":
        missing = [name for name in REQUIRED if not environ.get(name)]
        if missing:
            raise SystemExit(f"not set: {', '.join(missing)}. See README.md")
        if len(environ["WAKE_SECRET"]) < 32:
            raise SystemExit("WAKE_SECRET needs at least 32 characters: openssl rand -hex 32")
        host = environ["KUBERNETES_SERVICE_HOST"]
        port = environ["KUBERNETES_SERVICE_PORT"]
        return cls(
            tollgate_url=environ["TOLLGATE_URL"].rstrip("/"),
            api_key=environ["TOLLGATE_API_KEY"],
            model_id=environ["MODEL_ID"],
            deployment_id=environ["DEPLOYMENT_ID"],
            hook_url=environ["HOOK_URL"].rstrip("/"),
            wake_secret=environ["WAKE_SECRET"],
            hook_port=int(environ.get("HOOK_PORT", "8080")),
            kubernetes_url=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            account=Path(environ.get("SERVICE_ACCOUNT", ACCOUNT)),
            target=environ["TARGET"],
            pod_port=int(environ.get("POD_PORT", "8000")),
            health_path=environ.get("HEALTH_PATH", "/health"),
            max_replicas=int(environ.get("MAX_REPLICAS", "1")),
            idle_timeout_s=float(environ.get("IDLE_TIMEOUT_S", "300")),
            stuck_s=float(environ.get("STUCK_S", str(STUCK_S))),
        )


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the credential to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Api:
    """A JSON API behind a bearer credential. `ask` raises OSError when it fails; an HTTPError is one."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None) -> None:
        self._url = url
        handlers: list[urllib.request.BaseHandler] = [NoRedirects(), urllib.request.ProxyHandler({})]
        self._opener = urllib.request.build_opener(*handlers, urllib.request.HTTPSHandler(context=context))

    def credential(self) -> str:
        raise NotImplementedError

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.credential()}"} | ({} if data is None else {"Content-Type": kind})
        request = urllib.request.Request(self._url + path, data, headers, method=method)  # noqa: S310 (the settings' URL)
        with self._opener.open(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)


class Tollgate(Api):
    """The deployment, as the management API shows it."""

    def __init__(self, settings: Settings) -> None:
        path = f"/v1/models/{settings.model_id}/deployments/{settings.deployment_id}"
        super().__init__(settings.tollgate_url + path)
        self._api_key = settings.api_key

    def credential(self) -> str:
        return self._api_key

    def move(self, present: str, target: str, error_message: str | None = None) -> None:
        """Set the statuses between the present and the wanted one; none if it is not ahead."""
        way = ("SCALED_TO_ZERO", "WAKING_UP", "LOADING_MODEL", "FAILED")
        present = "SCALED_TO_ZERO" if present == "DEPLOYING" else present
        if present not in way:
            return
        for status in way[way.index(present) + 1 : way.index(target) + 1]:
            reason = {"error_message": error_message} if status == "FAILED" else {}
            try:
                self.ask("PUT", "/status", {"status": status} | reason)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code != 409:  # it has moved meanwhile: the next look shows where to
                    raise
                return


class Kubernetes(Api):
    """The target Deployment's scale and pods, with the rights of the service account."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.kubernetes_url, ssl.create_default_context(cafile=str(settings.account / "ca.crt")))
        self._account = settings.account
        namespace = (settings.account / "namespace").read_text().strip()
        self._scale_path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{settings.target}/scale"
        self._pods_path = f"/api/v1/namespaces/{namespace}/pods"

    def credential(self) -> str:
        return (self._account / "token").read_text().strip()  # Kubernetes replaces it while we run

    def scale(self) -> tuple[int, str]:
        """Return how many pods are wanted, and the label selector that finds them."""
        scale = self.ask("GET", self._scale_path)
        return int(scale["spec"].get("replicas", 0)), str(scale["status"].get("selector", ""))

    def set_scale(self, replicas: int) -> None:
        self.ask("PATCH", self._scale_path, {"spec": {"replicas": replicas}}, "application/merge-patch+json")

    def pods(self, selector: str) -> list[dict[str, Any]]:
        query = urllib.parse.urlencode({"labelSelector": selector})
        return list(self.ask("GET", f"{self._pods_path}?{query}")["items"])


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether the pod takes calls. One that is deleted leaves the list; its preStop hook waits for that."""
    conditions = pod.get("status", {}).get("conditions", ())
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return ready and bool(pod["status"].get("podIP")) and "deletionTimestamp" not in pod["metadata"]


def why_stuck(pods: list[dict[str, Any]]) -> str:
    """Return why a pod cannot start; "" if none says so."""
    for pod in pods:
        for container in pod.get("status", {}).get("containerStatuses", ()):
            state = container.get("state", {}).get("waiting") or {}
            if state.get("reason") in STUCK_REASONS:
                last = (container.get("lastState", {}).get("terminated") or {}).get("reason", "")
                cause = f"{state['reason']}: {state.get('message', '')}"
                return f"pod {pod['metadata']['name']}: {cause}{f' (last: {last})' if last else ''}"
    return ""


class Needs:
    """The highest number of pods that were needed at any time within the idle timeout."""

    def __init__(self, idle_timeout_s: float) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._needs: list[tuple[float, int]] = []
        self._last_request_at: Any = None
        self._told_at = 0.0

    def add(self, now: float, pods: int) -> None:
        self._needs = [(at, need) for at, need in self._needs if need > pods] + [(now, pods)]

    def observe(self, now: float, deployment: Mapping[str, Any]) -> None:
        """Note the load. After a gap without news, the last known need is assumed to have lasted until now."""
        load = deployment["load"]
        each = deployment.get("max_concurrency") or CALLS_PER_REPLICA
        if self._told_at and now - self._told_at > 10 * TICK_S:
            self.add(now, self.peak())
        had_call = self._told_at > 0 and load["last_request_at"] != self._last_request_at
        self._told_at = now
        self._last_request_at = load["last_request_at"]
        calls = load["in_flight"] + load["queued"] + load["parked"]
        self.add(now, max(-(-calls // each), int(had_call)))
        self._needs = [(at, need) for at, need in self._needs if at > now - self._idle_timeout_s]

    def peak(self) -> int:
        return max((need for _, need in self._needs), default=0)


class Scaler:
    """Compares what is needed, what Kubernetes runs and what Tollgate lists, and mends the difference."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tollgate = Tollgate(settings)
        self._kubernetes = Kubernetes(settings)
        self._needs = Needs(settings.idle_timeout_s)
        self._drained_since: float | None = None
        self._stuck_since: float | None = None
        self._has_failed = False
        self._had_ready = False
        self.woken = threading.Event()

    def register(self) -> None:
        """Tell control our hook, and how the proxies probe pods. Pods that run already stay listed."""
        hook = f"{self._settings.hook_url}/wake/{self._settings.wake_secret}"
        health = self._tollgate.ask("GET", "").get("health") or {}
        self._tollgate.ask("PATCH", "", {"wake_url": hook, "health": health | {"path": self._settings.health_path}})

    def tick(self, now: float) -> None:
        if self.woken.is_set():
            self.woken.clear()
            self._needs.add(now, 1)
            self._has_failed = False
            self._stuck_since = None
        deployment = self._tollgate.ask("GET", "")
        self._needs.observe(now, deployment)
        if self._has_failed and deployment["status"] != "FAILED":  # somebody asked for a retry
            self.woken.set()
            self._has_failed = False
        scale, selector = self._kubernetes.scale()
        pods = self._kubernetes.pods(selector)
        ready = [self._url(pod) for pod in pods if is_ready(pod)]
        if ready and not self._had_ready:
            self._needs.add(now, 1)  # the idle time begins when the first pod is ready
        self._had_ready = bool(ready)
        self._apply(now, deployment, scale, ready)
        if scale and not ready:
            self._look_if_stuck(now, why_stuck(pods))
        else:
            self._stuck_since = None

    def _apply(self, now: float, deployment: Mapping[str, Any], scale: int, ready: list[str]) -> None:
        target = 0 if self._has_failed else min(self._needs.peak(), self._settings.max_replicas)
        if ready and scale and not target:
            self._list(deployment, [])
            self._drain(now, deployment)
            return
        self._drained_since = None
        if not target and scale and self._stuck_since is None and not self._has_failed:
            target = scale  # pods that are still starting are not idle
        if target != scale:
            say(f"scaling {self._settings.target} from {scale} to {target}")
            self._kubernetes.set_scale(target)
        self._list(deployment, ready)
        if target and not ready:
            self._tollgate.move(deployment["status"], "LOADING_MODEL")

    def _drain(self, now: float, deployment: Mapping[str, Any]) -> None:
        """Scale to zero when proxies know the empty list and no call is left."""
        if self._drained_since is None:
            self._drained_since = now
        if now - self._drained_since >= SETTLE_S and not deployment["load"]["in_flight"]:
            say(f"idle: scaling {self._settings.target} to zero")
            self._kubernetes.set_scale(0)

    def _list(self, deployment: Mapping[str, Any], urls: list[str]) -> None:
        if sorted(deployment["replicas"]) != sorted(urls):
            say(f"listing {len(urls)} pods")
            self._tollgate.ask("PUT", "/replicas", {"replicas": sorted(urls)})

    def _look_if_stuck(self, now: float, why: str) -> None:
        if not why:
            self._stuck_since = None
            return
        self._stuck_since = self._stuck_since or now
        if now - self._stuck_since >= self._settings.stuck_s and not self._has_failed:
            say(f"giving up: {why}")
            self._tollgate.move(self._tollgate.ask("GET", "")["status"], "FAILED", why[:1000])
            self._kubernetes.set_scale(0)
            self._has_failed = True

    def _url(self, pod: Mapping[str, Any]) -> str:
        address = pod["status"]["podIP"]
        port = self._settings.pod_port
        return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


class Hook(ThreadingHTTPServer):
    """`POST /wake/{secret}` is answered 202 at once; `GET /healthz` 200; anything else 404 or 405."""

    daemon_threads = True

    def __init__(self, settings: Settings, woken: threading.Event) -> None:
        super().__init__(("", settings.hook_port), HookHandler)
        self.path = f"/wake/{settings.wake_secret}"
        self.woken = woken


class HookHandler(BaseHTTPRequestHandler):
    """One connection."""

    server: Hook
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/healthz" else 405 if self._is_ours() else 404)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            self._answer(413)
            return
        self.rfile.read(int(length))
        if self._is_ours():
            self.server.woken.set()
        self._answer(202 if self._is_ours() else 404)

    def _is_ours(self) -> bool:
        return hmac.compare_digest(self.path.encode(), self.server.path.encode())

    def _answer(self, status: int) -> None:
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """The path is a secret."""


def describe(error: Exception) -> str:
    """The failure and, of an HTTP answer, its text. Never the request, which bears the credential."""
    if isinstance(error, urllib.error.HTTPError):
        with error:
            return f"{error.code}: {error.read(500).decode(errors='replace')}"
    return str(error) or type(error).__name__


def run(settings: Settings) -> None:
    """Register, then tick until SIGTERM. A failure is told once, until something works again."""
    scaler = Scaler(settings)
    hook = Hook(settings, scaler.woken)
    threading.Thread(target=hook.serve_forever, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    is_registered = False
    problem = ""
    while True:
        try:
            if not is_registered:
                scaler.register()
                is_registered = True
                say("registered; waiting for calls")
            scaler.tick(time.monotonic())
            problem = ""
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not problem:
                problem = describe(error)
                say(f"cannot do my work ({problem}); pods keep serving, trying again")
        scaler.woken.wait(TICK_S)


if __name__ == "__main__":
    run(Settings.from_environ(os.environ))
