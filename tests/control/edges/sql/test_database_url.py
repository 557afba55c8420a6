"""Database URLs: the spellings that other tools use, libpq's parameters, and errors that quote no password."""

import ssl
from pathlib import Path

import pytest

from control.edges.sql.database_url import DatabaseUrlError, embedded_file, parse
from tests.fakes.throwaway_ca import ThrowawayCa


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+asyncpg"])
def test_every_spelling_of_postgresql_gets_our_driver(scheme: str) -> None:
    url, args = parse(f"{scheme}://u:p@db.example:5433/tollgate")
    assert (url.drivername, url.host, url.port, url.database) == (
        "postgresql+asyncpg",
        "db.example",
        5433,
        "tollgate",
    )
    assert args["server_settings"] == {"application_name": "tollgate-control"}
    assert "ssl" not in args


def test_a_sockets_directory_stays_in_the_url() -> None:
    url, _ = parse("postgresql://u@/d?host=/run/postgresql&sslmode=disable")
    assert dict(url.query) == {"host": "/run/postgresql"}


def test_libpqs_parameters_are_understood() -> None:
    url, args = parse("postgresql://u:p@h/d?sslmode=require&connect_timeout=3&application_name=mine")
    assert args["ssl"] == "require"
    assert args["timeout"] == 3
    assert args["server_settings"] == {"application_name": "mine"}
    assert not url.query


@pytest.mark.parametrize(("mode", "checks_name"), [("verify-full", True), ("verify-ca", False), ("require", False)])
def test_a_root_certificate_is_trusted_as_libpq_trusts_it(mode: str, checks_name: bool, tmp_path: Path) -> None:
    root = ThrowawayCa(tmp_path).ca_file
    _, args = parse(f"postgresql://u:p@h/d?sslmode={mode}&sslrootcert={root}")
    assert args["ssl"].verify_mode is ssl.CERT_REQUIRED
    assert args["ssl"].check_hostname is checks_name


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://u:hunter2@h/d", "sqlite+aiosqlite:///PATH"),
        ("hunter2", "sqlite+aiosqlite:///PATH"),
        ("sqlite+aiosqlite://", "sqlite+aiosqlite:///PATH"),
        ("postgresql://u:hunter2@h/d?sslmode=maybe", "sslmode"),
        ("postgresql://u:hunter2@h/d?channel_binding=require", "channel_binding"),
        ("postgresql://u:hunter2@h/d?connect_timeout=soon", "connect_timeout"),
        ("postgresql://u:hunter2@h/d?sslmode=verify-full&sslrootcert=/nowhere.crt", "certificate file"),
        ("postgresql://u:hunter2@h/d?sslmode=disable&sslrootcert=/nowhere.crt", "sslmode=disable"),
    ],
)
def test_what_cannot_be_used_is_named_without_the_password(url: str, says: str) -> None:
    with pytest.raises(DatabaseUrlError) as refused:
        parse(url)
    assert says in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_only_sqlite_has_a_file() -> None:
    assert embedded_file("sqlite:////var/lib/c.db") == Path("/var/lib/c.db")
    assert embedded_file("postgresql://u:p@h/d") is None
