"""The address and login of a Redis server: parses TOLLGATE_REDIS_URL.

Query options have redis-py's names, so that one URL serves both clients. Reads certificates; otherwise no I/O.

See docs/reference/settings.md#all-settings.
"""

import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

_DEFAULT_PORT = 6379


class RedisUrlError(ValueError):
    """TOLLGATE_REDIS_URL cannot be parsed. The message never repeats it, because it may contain a password."""


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """One Redis server. `path` is set for a unix socket, `host` and `port` otherwise."""

    path: str = ""
    host: str = ""
    port: int = _DEFAULT_PORT
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> "RedisAddress":
        """`unix:///path?db=0`, `redis://[user:password@]host[:port][/db]`, `rediss://…` for TLS."""
        split = urlsplit(url)
        options = {name: values[-1] for name, values in parse_qs(split.query).items()}
        username, password = unquote(split.username or ""), unquote(split.password or "")
        if split.scheme not in ("unix", "redis", "rediss"):
            raise RedisUrlError("the scheme of the Redis URL must be unix, redis or rediss")
        try:
            if split.scheme == "unix":
                return cls(unquote(split.path), db=int(options.get("db", 0)), username=username, password=password)
            db = int(options.get("db") or split.path.strip("/") or 0)
            host, port = split.hostname or "localhost", split.port or _DEFAULT_PORT
        except ValueError as error:
            raise RedisUrlError("the Redis URL has a port or a database that is not a number") from error
        tls = _tls(options) if split.scheme == "rediss" else None
        return cls("", host, port, db, username, password, tls)

    def handshake(self) -> list[tuple[str, ...]]:
        """The commands with which a connection starts: log in, select the database."""
        commands: list[tuple[str, ...]] = []
        if self.password:
            commands.append(("AUTH", *((self.username,) if self.username else ()), self.password))
        if self.db:
            commands.append(("SELECT", str(self.db)))
        return commands


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
    if options.get("ssl_cert_reqs", "required") == "none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif options.get("ssl_check_hostname", "true").lower() in ("false", "0", "no"):
        context.check_hostname = False
    if "ssl_certfile" in options:
        context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    return context
