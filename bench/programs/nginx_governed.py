"""nginx as a gateway of its own: Lua with the keys, models, limits, usage and events of a governed call, and a Redis.

It stands for what an operator would build instead of buying. `nginx_lua/` is the program; it checks a call against the
same four limits at three levels, by sliding windows of two counters, which are not exact.
"""

import base64
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from bench.load import Call
from bench.programs.peers import CHAT, Peer, await_port, chat_body, missing, version_of
from bench.programs.processes import OTHER_CORE, PROXY_CORE, free_port, start, wait_until

_LUA = Path(__file__).with_name("nginx_lua")
_MODULES = Path("/usr/lib/nginx/modules")
_SLUG = "bench/governed"
_KEY = "bench-key"
_THRESHOLD = 2**40
_MINUTE_MS = 60_000
_LIMITS = (
    ("root", "requests", _MINUTE_MS),
    ("middle", "tokens", _MINUTE_MS),
    ("leaf", "requests", 1000),
    ("leaf", "requests", 24 * 60 * _MINUTE_MS),
)
"""The limits of `bench/governed`: the group, what counts, and the window."""


def start_nginx_governed(upstream_port: int, scratch: Path) -> Peer:
    """One worker with ngx_lua (Debian: libnginx-mod-http-lua, lua-cjson), and a Redis like the one of `tollgate up`."""
    nginx = shutil.which("nginx") or missing("nginx (Debian package nginx-light)")
    if not (_MODULES / "ngx_http_lua_module.so").exists():
        missing("ngx_lua (Debian packages libnginx-mod-http-lua, lua-resty-core, lua-resty-lrucache, lua-cjson)")
    redis = shutil.which("redis-server") or missing("redis-server")
    place = scratch / "nginx-governed"
    place.mkdir()
    socket = place / "redis.sock"
    argv = [redis, "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "777", "--dir", str(place)]
    limits = start("nginx's redis", [*argv, "--save", "", "--appendonly", "yes"], OTHER_CORE, place / "redis.log")
    wait_until(socket.exists, "nginx's redis")
    port = free_port()
    (place / "settings.json").write_text(json.dumps(_settings(socket)))
    conf = place / "nginx.conf"
    conf.write_text(_NGINX.format(port=port, upstream=upstream_port, place=place, lua=_LUA, modules=_MODULES))
    program = start("nginx_governed", [nginx, "-c", str(conf), "-g", "daemon off;"], PROXY_CORE, place / "nginx.log")
    try:
        await_port(port, program)
    except BaseException:
        limits.stop()
        raise
    call = Call(port, CHAT, chat_body(_SLUG), {"authorization": f"Bearer {_KEY}"})
    return Peer("nginx_governed", f"{version_of([nginx, '-v'])} with ngx_lua", program, call, limits)


def _settings(socket: Path) -> dict[str, Any]:
    digest = base64.b64encode(hashlib.sha1(_KEY.encode(), usedforsecurity=False).digest()).decode()
    limits = [
        {"key": f"{group}:{counts}:{window_ms}", "counts": counts, "window_ms": window_ms, "threshold": _THRESHOLD}
        for group, counts, window_ms in _LIMITS
    ]
    return {
        "redis": f"unix:{socket}",
        "script": str(_LUA / "limits.lua"),
        "keys": {digest: {"entity": "leaf", "limits": {_SLUG: limits}}},
        "models": {_SLUG: {"name": "mock", "authorization": "Bearer bench"}},
    }


_NGINX = """
load_module {modules}/ndk_http_module.so;
load_module {modules}/ngx_http_lua_module.so;
worker_processes 1; pid {place}/nginx.pid; error_log {place}/nginx-error.log warn; user root;
events {{ worker_connections 16384; }}
http {{
  access_log off; keepalive_requests 100000000; client_max_body_size 200m;
  client_body_temp_path {place}/body; proxy_temp_path {place}/proxy; fastcgi_temp_path {place}/f;
  uwsgi_temp_path {place}/u; scgi_temp_path {place}/s;
  lua_package_path "{lua}/?.lua;;";
  init_by_lua_block {{ gateway = require "gateway"; gateway.load("{place}/settings.json") }}
  init_worker_by_lua_block {{ gateway.start() }}
  upstream mock {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      access_by_lua_block {{ gateway.access() }}
      header_filter_by_lua_block {{ gateway.head() }}
      body_filter_by_lua_block {{ gateway.body() }}
      log_by_lua_block {{ gateway.settle() }}
      proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection "";
      client_body_buffer_size 1m;
    }}
  }}
}}
"""
