"""Networks between the callers, the product, its upstream and its Redis in a run under faults."""

import asyncio
import contextlib
import random
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from runtime.child_process import accepts, tie_to_parent
from tests.lossy_link import Connect, LossyLink, to_tcp, to_unix
from tests.ports import HOST, own_port
from tests.redis_server import RedisServer
from tests.waiting import eventually

NGINX = shutil.which("nginx")
NO_NGINX = "no nginx on PATH: apt-get install nginx-light"

# As docs/operating.md#behind-a-balancer recommends it.
_NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream tollgate {{
    server {proxy} max_fails=0;
    keepalive 32;
  }}
  server {{
    listen {front};
    client_max_body_size 100m;
    location / {{
      proxy_pass http://tollgate;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_request_buffering off;
      proxy_buffering off;
      proxy_connect_timeout 2s;
      proxy_read_timeout 1200s;
    }}
  }}
}}
"""


class Network(contextlib.AsyncExitStack):
    """A network without a device between product and peers. `folder`: for files of devices."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__()
        self.seed = seed
        self.folder = folder

    async def redis_url(self) -> str:
        """The URL of the product's Redis; "" for the one that it starts itself."""
        return ""

    async def front(self, proxy_url: str) -> str:
        """Return the URL at which callers reach the proxy."""
        return proxy_url

    async def upstream(self, url: str) -> str:
        """Return the URL at which the product reaches the upstream."""
        return url


class LossyNetwork(Network):
    """One segment in a hundred is lost on each way: from callers, to the upstream, to Redis."""

    async def redis_url(self) -> str:
        folder = Path(self.enter_context(tempfile.TemporaryDirectory()))  # a short path for its socket
        server = RedisServer(folder)
        self.push_async_callback(asyncio.to_thread, server.kill)
        await asyncio.to_thread(server.start)
        return f"redis://{await self._link(to_unix(str(server.socket_path)))}"

    async def front(self, proxy_url: str) -> str:
        return f"http://{await self._link(to_tcp(proxy_url))}"

    async def upstream(self, url: str) -> str:
        return f"http://{await self._link(to_tcp(url))}"

    async def _link(self, connect: Connect) -> str:
        link = LossyLink(connect, random.Random(self.seed))
        await link.start()
        self.push_async_callback(link.close)
        return f"{HOST}:{link.port}"


class NginxNetwork(Network):
    """Callers reach the proxy through nginx."""

    async def front(self, proxy_url: str) -> str:
        assert NGINX is not None
        port = own_port()
        log = self.folder / "nginx.log"
        configuration = self.folder / "nginx.conf"
        names = {"folder": self.folder, "proxy": urlsplit(proxy_url).netloc, "front": f"{HOST}:{port}"}
        configuration.write_text(_NGINX.format(**names))
        process = _start([NGINX, "-c", str(configuration), "-p", str(self.folder)], log)
        self.callback(process.wait)
        self.callback(process.terminate)
        await eventually(lambda: accepts(HOST, port), lambda: f"nginx listens\n{log.read_text()}")
        return f"http://{HOST}:{port}"


def _start(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("a") as stderr:
        return subprocess.Popen(words, stderr=stderr, preexec_fn=tie_to_parent())  # noqa: PLW1509


NETWORKS = {"direct": Network, "lossy": LossyNetwork, "nginx": NginxNetwork}
