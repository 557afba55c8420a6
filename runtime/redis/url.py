"""TOLLGATE_REDIS_URL in all its forms: one server, a cluster, or a primary that sentinels know.

Query options have redis-py's names, so that one URL serves every client. `TlsOptions.context` reads certificates;
otherwise no I/O.

See docs/reference/settings.md#redis-urls.
"""

import re
import ssl
from dataclasses import dataclass, field, replace
from enum import Enum
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

_DEFAULT_PORT = 6379
_DEFAULT_SENTINEL_PORT = 26379
_SCHEMES = {
    "unix": "server",
    "redis": "server",
    "rediss": "server",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
}


class RedisUrlError(ValueError):
    """The URL of a Redis cannot be read. The message never repeats it, because it may contain a password."""


class Topology(Enum):
    SERVER = "server"
    CLUSTER = "cluster"
    SENTINEL = "sentinel"


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The options of TLS: how a server proves who it is, and which certificate we show it."""

    ca_file: str | None = None
    verifies: bool = True
    checks_host_name: bool = True
    certificate_file: str | None = None
    key_file: str | None = None

    @classmethod
    def of(cls, options: dict[str, str]) -> "TlsOptions":
        return cls(
            options.get("ssl_ca_certs"),
            options.get("ssl_cert_reqs", "required") != "none",
            options.get("ssl_check_hostname", "true").lower() not in ("false", "0", "no"),
            options.get("ssl_certfile"),
            options.get("ssl_keyfile"),
        )

    def context(self) -> ssl.SSLContext:
        """Reads the files. Raises OSError."""
        context = ssl.create_default_context(cafile=self.ca_file)
        context.check_hostname = self.verifies and self.checks_host_name
        if not self.verifies:
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file)
        return context


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """One server, and the login there. `path` is set for a unix socket, `host` and `port` otherwise."""

    path: str = ""
    host: str = ""
    port: int = _DEFAULT_PORT
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    tls: TlsOptions | None = field(default=None, repr=False)

    def at(self, host: str, port: int) -> "RedisAddress":
        """Another server with the same login."""
        return replace(self, host=host, port=port)

    def handshake(self) -> list[tuple[str, ...]]:
        """The commands with which a connection starts: log in, select the database."""
        commands: list[tuple[str, ...]] = []
        if self.password:
            commands.append(("AUTH", *((self.username,) if self.username else ()), self.password))
        if self.db:
            commands.append(("SELECT", str(self.db)))
        return commands


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """`servers`: the server; the nodes of a cluster to ask first; or the sentinels, each with the login there.

    `login`: how to log in at the servers that hold data; of sentinels, its host is not known. `service`: the name by
    which sentinels know the primary.
    """

    topology: Topology
    servers: tuple[RedisAddress, ...]
    login: RedisAddress
    service: str = ""

    @classmethod
    def parse(cls, url: str) -> "RedisUrl":
        """See docs/reference/settings.md#redis-urls. Raises `RedisUrlError`."""
        split = _split(url)
        options = {name: values[-1] for name, values in parse_qs(split.query).items()}
        match Topology(_SCHEMES[split.scheme]):
            case Topology.SERVER:
                return _server(split, options)
            case Topology.CLUSTER:
                return _cluster(split, options)
            case Topology.SENTINEL:
                return _sentinels(split, options)


def _split(url: str) -> SplitResult:
    """Return the parts. `urlsplit` sees no hosts: it refuses several of which one has brackets, and may quote them."""
    scheme, _, rest = url.strip().partition(":")
    if scheme.lower() not in _SCHEMES:
        raise RedisUrlError(f"expected a URL of one of the schemes {', '.join(_SCHEMES)}")
    if not rest.startswith("//"):
        return urlsplit(url)
    hosts = re.split("[/?#]", rest[2:], maxsplit=1)[0]
    return urlsplit(f"{scheme}://{rest[2 + len(hosts) :]}")._replace(netloc=hosts)


def _server(split: SplitResult, options: dict[str, str]) -> RedisUrl:
    login = _login(split, options)
    if split.scheme == "unix":
        address = replace(login, path=unquote(split.path), db=_database(options.get("db", "")))
    else:
        names = _host_names(split)
        if len(names) > 1:
            raise RedisUrlError("several hosts need redis+cluster or redis+sentinel as the scheme")
        host, port = _host_and_port(names[0], _DEFAULT_PORT)
        host = host or "localhost"
        address = replace(login, host=host, port=port, db=_database(options.get("db") or split.path.strip("/")))
    return RedisUrl(Topology.SERVER, (address,), address)


def _cluster(split: SplitResult, options: dict[str, str]) -> RedisUrl:
    if _database(options.get("db") or split.path.strip("/")):
        raise RedisUrlError("a Redis cluster has no databases: leave the number out")
    login = _login(split, options)
    return RedisUrl(Topology.CLUSTER, tuple(login.at(*host) for host in _hosts(split, _DEFAULT_PORT)), login)


def _sentinels(split: SplitResult, options: dict[str, str]) -> RedisUrl:
    service, _, database = split.path.strip("/").partition("/")
    if not service:
        raise RedisUrlError("the service that the sentinels watch is missing: …/service at the end")
    login = replace(_login(split, options), db=_database(options.get("db") or database))
    there = RedisAddress(
        username=options.get("sentinel_username", ""), password=options.get("sentinel_password", ""), tls=login.tls
    )
    sentinels = tuple(there.at(*host) for host in _hosts(split, _DEFAULT_SENTINEL_PORT))
    return RedisUrl(Topology.SENTINEL, sentinels, login, unquote(service))


def _login(split: SplitResult, options: dict[str, str]) -> RedisAddress:
    """Return what is true of every server of the URL."""
    username, _, password = split.netloc.rpartition("@")[0].partition(":")
    tls = TlsOptions.of(options) if split.scheme.startswith("rediss") else None
    return RedisAddress(username=unquote(username), password=unquote(password), tls=tls)


def _hosts(split: SplitResult, default_port: int) -> list[tuple[str, int]]:
    """The hosts and ports of `host[:port][,host[:port]…]`. A missing host is refused: it does not mean localhost."""
    hosts = [_host_and_port(name, default_port) for name in _host_names(split)]
    if not all(host for host, _ in hosts):
        raise RedisUrlError("a Redis host name is missing; is there a comma too many?")
    return hosts


def _host_names(split: SplitResult) -> list[str]:
    return [name.strip() for name in split.netloc.rpartition("@")[2].split(",")]


def _host_and_port(name: str, default_port: int) -> tuple[str, int]:
    """The host, empty if there is none, and its port."""
    try:
        one = urlsplit(f"//{name}")
        return one.hostname or "", default_port if one.port is None else one.port
    except ValueError:  # its text may quote the host
        raise RedisUrlError(
            "a host is not a name or an address (IPv6 in brackets), or its port not a number up to 65535"
        ) from None


def _database(text: str) -> int:
    if not text:
        return 0
    if not text.isdecimal():
        raise RedisUrlError("the database is not a number")
    return int(text)
