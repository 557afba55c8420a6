"""Sources of weights on loopback: a Hugging Face hub and an S3 store, and a host of files behind TLS.

The hub and the store are at `url`, in the clear, as an operator may have them; the names in `NAMES` lead to the host by
`link`. Paths, answers and redirects are those of the real ones; signatures of the bucket `private` are verified.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.fakes.throwaway_ca import ThrowawayCa
from tests.ports import own_port
from tests.s3_signing import Keys, authorization

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = "files.example.com"
CDN = "cdn.example.com"
NAMES = (FILES, CDN)
TOKEN = "hf_Token-of-the-gated-model"
LARGE_BYTES = 1000
"""The size from which files are large: the hub lists their SHA-256, and has them at the CDN."""
_PAGE = 2


@dataclass
class SourceRequest:
    """A request that came."""

    host: str
    target: str
    headers: Mapping[str, str]


@dataclass
class WeightsSources:
    """`models`: files by path, by repository; one named `gated…` asks for the token. `buckets`: objects by
    key, by bucket. `files`: those of the host, by target."""

    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    buckets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    """The URLs to which targets of the host lead."""
    keys: Keys = field(default_factory=lambda: Keys("AKIATEST", "the-secret-access-key", "", "", "eu-test-1"))
    requests: list[SourceRequest] = field(default_factory=list)
    cut_after: list[int] = field(default_factory=list)
    """The bytes after which the next files of the host or the store break off."""
    answers: list[int] = field(default_factory=list)
    """The statuses of the next answers of the host."""
    pause: threading.Event | None = None
    """Files of the host and the store stop behind their first byte until it is set."""
    token: str = TOKEN
    url: str = ""
    tls_port: int = 0
    ca_file: str = ""

    @property
    def link(self) -> str:
        return ",".join(f"{name}=127.0.0.1:{self.tls_port}" for name in NAMES)

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a product that uses them."""
        return {
            "TOLLGATE_WEIGHTS_HUB_URL": self.url,
            "TOLLGATE_WEIGHTS_STORE_URL": self.url,
            "TOLLGATE_EGRESS_ALLOW": self.link,
            "TOLLGATE_EGRESS_CA_FILE": self.ca_file,
        }

    def targets(self, host: str) -> list[str]:
        return [one.target for one in self.requests if one.host.partition(":")[0] == host]


@contextmanager
def serving_weights(directory: Path) -> Iterator[WeightsSources]:
    """Serve until the block ends."""
    sources = WeightsSources()
    ca = ThrowawayCa(directory)
    handler = type("Handler", (_Handler,), {"sources": sources})
    plain = _Server(("127.0.0.1", own_port()), handler)
    secure = _Server(("127.0.0.1", own_port()), handler)
    secure.socket = ca.server_context(*NAMES).wrap_socket(secure.socket, server_side=True)
    sources.url = f"http://127.0.0.1:{plain.server_port}"
    sources.tls_port = secure.server_port
    sources.ca_file = str(ca.ca_file)
    servers = (plain, secure)
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield sources
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: callers leave in the middle."""


class _Handler(BaseHTTPRequestHandler):
    sources: WeightsSources
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        host = self.headers["Host"]
        self.sources.requests.append(SourceRequest(host, self.path, dict(self.headers)))
        if host.partition(":")[0] in NAMES:
            self._host()
        elif self.path.startswith("/api/models/") or "/resolve/" in self.path:
            self._hub()
        else:
            self._bucket()

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    # --- the hub ---

    def _hub(self) -> None:
        target = urlsplit(self.path)
        parts = target.path.removeprefix("/api/models").split("/")
        name = "/".join(parts[1:3])
        files = self.sources.models.get(name)
        is_gated = name.split("/")[-1].startswith("gated")
        if files is None or (is_gated and self.headers["Authorization"] != f"Bearer {self.sources.token}"):
            self._answer(401 if files is None or "Authorization" not in self.headers else 403)
        elif parts[3] == "revision":
            is_revision = unquote(parts[4]) in ("main", "refs/pr/1")
            self._answer(200 if is_revision else 404, json.dumps({"id": name, "sha": COMMIT}).encode())
        elif parts[3] == "tree":
            self._tree(name, files, int(parse_qs(target.query).get("cursor", ["0"])[0]))
        else:
            self._resolve(files, unquote(target.path.partition(f"/resolve/{COMMIT}/")[2]))

    def _tree(self, name: str, files: dict[str, bytes], start: int) -> None:
        entries: list[dict[str, Any]] = [{"type": "directory", "oid": "0", "size": 0, "path": "a-directory"}]
        for path, content in files.items():
            entry = {"type": "file", "oid": "0", "size": len(content), "path": path}
            if len(content) >= LARGE_BYTES:
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            entries.append(entry)
        more = f"{self.sources.url}/api/models/{name}/tree/{COMMIT}?recursive=true&cursor={start + _PAGE}"
        headers = {"Link": f'<{more}>; rel="next"'} if start + _PAGE < len(entries) else {}
        self._answer(200, json.dumps(entries[start : start + _PAGE]).encode(), **headers)

    def _resolve(self, files: dict[str, bytes], path: str) -> None:
        content = files[path]
        if len(content) < LARGE_BYTES:
            self._answer(200, content, X_Repo_Commit=COMMIT)
            return
        target = f"/blobs/{hashlib.sha256(content).hexdigest()}?X-Amz-Signature=of-the-cdn"
        self.sources.files[target] = content
        self._answer(302, Location=f"https://{CDN}{target}")

    # --- the store ---

    def _bucket(self) -> None:
        target = urlsplit(self.path)
        name, _, key = target.path.removeprefix("/").partition("/")
        objects = self.sources.buckets.get(name, {})
        query = parse_qs(target.query)
        if name == "private" and not self._is_signed():
            self._answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        elif name == "elsewhere" and "eu-west-9" not in self.headers.get("Authorization", ""):
            self._answer(301, b"<Error><Code>PermanentRedirect</Code></Error>", x_amz_bucket_region="eu-west-9")
        elif not key and name == "unlisted":
            self._answer(403)
        elif not key:
            self._list(objects, query)
        elif unquote(key) in objects:
            self._file(objects[unquote(key)])
        else:
            self._answer(404)

    def _is_signed(self) -> bool:
        signed = {"host", "x-amz-date", "x-amz-content-sha256"}
        headers = {name.lower(): value for name, value in self.headers.items()}
        if not signed <= headers.keys():
            return False
        own = {name: headers[name] for name in signed}
        date = headers["x-amz-date"]
        return headers.get("authorization") == authorization(self.sources.keys, "GET", self.path, own, date)

    def _list(self, objects: dict[str, bytes], query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        start = int(query.get("continuation-token", ["0"])[0].removeprefix("t/+"))
        keys = [key for key in sorted(objects) if key.startswith(prefix)]
        page = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(objects[key])}</Size></Contents>"
            for key in keys[start : start + _PAGE]
        )
        if start + _PAGE < len(keys):
            page += f"<NextContinuationToken>t/+{start + _PAGE}</NextContinuationToken>"
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        self._answer(200, f'<?xml version="1.0"?><ListBucketResult xmlns="{space}">{page}</ListBucketResult>'.encode())

    # --- the host ---

    def _host(self) -> None:
        if self.sources.answers:
            self._answer(self.sources.answers.pop(0))
        elif self.path in self.sources.redirects:
            self._answer(302, Location=self.sources.redirects[self.path])
        elif self.path not in self.sources.files:
            self._answer(404)
        else:
            self._file(self.sources.files[self.path])

    def _file(self, content: bytes) -> None:
        etag = f'"{hashlib.sha256(content).hexdigest()[:8]}"'
        start = 0
        if self.headers.get("If-Range") == etag:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", etag)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.sources.cut_after:
            self.wfile.write(content[start : start + self.sources.cut_after.pop(0)])
            self.close_connection = True
            return
        if self.sources.pause is not None:
            self.wfile.write(content[start : start + 1])
            self.sources.pause.wait()
            start += 1
        self.wfile.write(content[start:])
