"""Parses TOLLGATE_DATABASE_URL: SQLite or PostgreSQL, in the spellings of other tools.

Opens no connection. No error quotes the URL, which may hold a password.
"""

import ssl
from pathlib import Path
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

_DRIVERS = {
    **dict.fromkeys(("sqlite", "sqlite+aiosqlite"), "sqlite+aiosqlite"),
    **dict.fromkeys(("postgres", "postgresql", "postgresql+asyncpg"), "postgresql+asyncpg"),
}
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_ADDRESS = ("host", "port")
"""A socket's directory, or several servers; passed to the driver unchanged."""
_FILES = ("sslrootcert", "sslcert", "sslkey")
_CONNECT_TIMEOUT_S = 5.0
_COMMAND_TIMEOUT_S = 60.0
_APPLICATION_NAME = "tollgate-control"


class DatabaseUrlError(ValueError):
    """TOLLGATE_DATABASE_URL (--database-url) must be sqlite+aiosqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME."""

    def __init__(self, fault: str = "") -> None:
        super().__init__(fault or self.__doc__)


def parse(database_url: str) -> tuple[URL, dict[str, Any]]:
    """The URL with our driver's name, and the keyword arguments for that driver's `connect`.

    Accepts these libpq parameters: `sslmode`, `sslrootcert`, `sslcert`, `sslkey`, `connect_timeout` (seconds) and
    `application_name`. Raises `DatabaseUrlError`.
    """
    try:
        url = make_url(database_url)
        url = url.set(drivername=_DRIVERS[url.drivername])
    except (ArgumentError, KeyError, ValueError):
        raise DatabaseUrlError from None
    if url.get_backend_name() == "sqlite":
        if not url.database:
            raise DatabaseUrlError
        return url, {}
    where = {name: value for name, value in url.query.items() if name in _ADDRESS}
    parameters = {name: value if isinstance(value, str) else value[-1] for name, value in url.query.items()}
    return url.set(query=where), _connect_args({name: parameters[name] for name in parameters if name not in where})


def embedded_file(database_url: str) -> Path | None:
    """The file of an SQLite database, or None for a database server."""
    url, _ = parse(database_url)
    is_file = url.get_backend_name() == "sqlite" and url.database != ":memory:"
    return Path(url.database) if is_file and url.database else None


def _connect_args(parameters: dict[str, str]) -> dict[str, Any]:
    """asyncpg's arguments for libpq's parameters."""
    args: dict[str, Any] = {
        "timeout": _seconds(parameters.pop("connect_timeout", str(_CONNECT_TIMEOUT_S))),
        "command_timeout": _COMMAND_TIMEOUT_S,
        "server_settings": {"application_name": parameters.pop("application_name", _APPLICATION_NAME)},
    }
    mode = parameters.pop("sslmode", None) or parameters.pop("ssl", None)  # asyncpg calls it `ssl`
    files = {name: parameters.pop(name) for name in _FILES if name in parameters}
    if parameters:
        unknown = ", ".join(sorted(parameters))
        raise DatabaseUrlError(f"the database URL has parameters that are not supported here: {unknown}; remove them")
    if mode is not None and mode not in _SSL_MODES:
        raise DatabaseUrlError(f"sslmode in the database URL must be one of {', '.join(_SSL_MODES)}")
    if files and mode in ("disable", "allow", "prefer"):
        raise DatabaseUrlError(f"sslmode={mode} in the database URL uses no certificates; use require or verify-full")
    if files:
        args["ssl"] = _ssl_context(mode or "verify-full", files)
    elif mode is not None:
        args["ssl"] = mode
    return args


def _ssl_context(mode: str, files: dict[str, str]) -> ssl.SSLContext:
    """libpq's meaning of the modes: `require` with a root certificate checks the chain (PostgreSQL 16, 34.19.1)."""
    try:
        context = ssl.create_default_context(cafile=files.get("sslrootcert"))
        if "sslcert" in files:
            context.load_cert_chain(files["sslcert"], files.get("sslkey"))
    except OSError as error:  # includes ssl.SSLError
        raise DatabaseUrlError(
            f"a certificate file named in the database URL cannot be used: {error.strerror}"
        ) from None
    context.check_hostname = mode == "verify-full"
    if mode == "require" and "sslrootcert" not in files:
        context.verify_mode = ssl.CERT_NONE
    return context


def _seconds(text: str) -> float:
    try:
        return float(max(1, int(float(text))))
    except (ValueError, OverflowError):
        raise DatabaseUrlError("connect_timeout in the database URL must be a number of seconds") from None
