"""Starts Tollgate for a benchmark: `tollgate up` in a scratch directory, one worker, set up through its public API.

Two slugs lead to the mock upstream: `bench/governed` (a key three levels down a CASCADING tree with four limits) and
`bench/open` (a key of a group without limits). Both are metered, counted and journaled.
"""

import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bench.load import Call
from bench.programs.peers import CHAT, chat_body
from bench.programs.processes import OTHER_CORE, PROXY_CORE, BenchError, Program, command_of, pin, start, wait_until
from runtime.child_process import free_ports

_TOLLGATE = str(Path(sys.executable).parent / "tollgate")
_HUGE = 2**40


@dataclass(slots=True)
class Gateway:
    """A running Tollgate. `governed` and `open` are the two calls to compare."""

    PARTS: ClassVar[Mapping[str, str]] = {
        "worker": "proxy.worker",
        "supervisor": "-m proxy ",
        "async worker": "proxy.async_worker",
        "redis": "redis-server",
        "control": "-m control ",
    }

    program: Program
    data: Path
    control_port: int
    api_key: str
    governed: Call
    open: Call

    def pids(self, part: str) -> list[int]:
        """The processes of one of `PARTS`."""
        return [pid for pid in self.program.pids() if self.PARTS[part] in command_of(pid)]

    @property
    def api(self) -> "Api":
        return Api(f"http://127.0.0.1:{self.control_port}", self.api_key)


def start_gateway(
    upstream_port: int, scratch: Path, workers: int = 1, settings: Mapping[str, str] | None = None
) -> Gateway:
    """Start, wait for `ready`, create the policy, and pin the proxy to its core and everything else to the other.

    No async worker runs, unless `settings` say so.
    """
    names = ("proxy", "control", "admin")
    ports = dict(zip(names, free_ports("127.0.0.1", len(names)), strict=True))
    data = scratch / "tollgate"
    argv = [_TOLLGATE, "up", "--data", str(data), "--workers", str(workers)]
    argv += [part for name, port in ports.items() for part in (f"--{name}-port", str(port))]
    env = {
        "TOLLGATE_VENDOR_B_BASE_URL": f"http://127.0.0.1:{upstream_port}",
        "TOLLGATE_EGRESS_ALLOW": "127.0.0.0/8",  # for replicas
        "TOLLGATE_ASYNC_WORKERS": "0",
        "TOLLGATE_TRAINING_BACKEND": "off",
        **(settings or {}),
    }
    certificate = env.get("TOLLGATE_TLS_CERT_FILE")
    log = scratch / "tollgate.log"
    program = start("tollgate", argv, OTHER_CORE, log, env)
    try:
        wait_until(lambda: any(line.startswith("ready") for line in log.read_text().splitlines()), "tollgate")
        api_key = make_workspace(data, "bench")
        keys = _set_up(Api(_url(ports["control"], certificate), api_key, certificate))
    except (BenchError, OSError, subprocess.SubprocessError) as error:
        program.stop()
        raise BenchError(
            f"tollgate did not start: {error}; its last output: {log.read_text()[-300:].strip()}"
        ) from error
    calls = {
        name: Call(
            ports["proxy"],
            CHAT,
            chat_body(f"bench/{name}"),
            {"authorization": f"Bearer {key}"},
            is_tls=certificate is not None,
        )
        for name, key in keys.items()
    }
    gateway = Gateway(program, data, ports["control"], api_key, calls["governed"], calls["open"])
    pin([*gateway.pids("supervisor"), *gateway.pids("worker")], PROXY_CORE)
    return gateway


def _url(port: int, certificate: str | None) -> str:
    return f"{'https' if certificate else 'http'}://127.0.0.1:{port}"


def make_workspace(data: Path, name: str) -> str:
    """Create a workspace. Returns its key."""
    argv = [_TOLLGATE, "workspace", "create", name, "--prefix", name, "--data", str(data)]
    process = subprocess.run(argv, capture_output=True, text=True, check=True, env=dict(os.environ))
    return str(json.loads(process.stdout)["api_key"])


def _set_up(api: "Api") -> dict[str, str]:
    secret = api.post("/v1/secrets", {"name": "upstream", "value": "bench"})["id"]
    target = {"provider": "VENDOR_B", "secret_id": secret, "target_model": "mock"}
    for name in ("governed", "open"):
        api.post("/v1/gateway/endpoints", {"slug": f"bench/{name}", "targets": [target]})
    root = api.group("root", [("REQUEST", "MINUTE")], None)
    middle = api.group("middle", [("TOKEN", "MINUTE")], root)
    leaf = api.group("leaf", [("REQUEST", "SECOND"), ("REQUEST", "DAY")], middle)
    free = api.post("/v1/gateway/groups", {"metadata": {"external_entity_id": "free"}, "models": [_entry("open", [])]})
    return {"governed": api.mint(leaf), "open": api.mint(free["id"])}


class Api:
    """The management API, as an operator's script would call it."""

    def __init__(self, url: str, key: str, certificate: str | None = None) -> None:
        self._tls = ssl.create_default_context(cafile=certificate) if certificate else None
        self._url = url
        self._key = key

    def post(self, path: str, body: Mapping[str, Any], method: str = "POST") -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), headers, method=method)
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30, context=self._tls) as answer:
                    value: dict[str, Any] = json.load(answer)
                    return value
            except urllib.error.HTTPError as error:
                if error.code != 429:
                    raise BenchError(
                        f"{method} {path} was answered {error.code}: {error.read().decode()[:300]}"
                    ) from error
                time.sleep(float(error.headers["retry-after"]))  # 100 requests a second per key

    def group(self, name: str, kinds: Sequence[tuple[str, str]], parent: str | None) -> str:
        hierarchy = {"parent_group_id": parent} if parent else {"limit_enforcement": "CASCADING"}
        body = {
            "metadata": {"external_entity_id": name},
            "models": [_entry("governed", kinds)],
            "hierarchy": hierarchy,
        }
        return str(self.post("/v1/gateway/groups", body)["id"])

    def mint(self, group: str) -> str:
        return str(self.post(f"/v1/gateway/groups/{group}/api_keys", {})["api_key"])


def _entry(name: str, kinds: Sequence[tuple[str, str]]) -> dict[str, Any]:
    limits = [{"type": kind, "unit": unit, "threshold": _HUGE} for kind, unit in kinds]
    rate = [limit for limit in limits if limit["unit"] != "DAY"]
    return {"slug": f"bench/{name}", "rate_limits": rate, "usage_limits": [x for x in limits if x["unit"] == "DAY"]}
