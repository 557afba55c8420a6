"""Checks those `OTEL_*` variables about the collector whose bad values would otherwise end a process later.

The SDK reads them itself, and all others. Imports nothing of OpenTelemetry.

See docs/reference/traces.md#settings.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from runtime.environment import Environment, number

PROTOCOL = "http/protobuf"
_HEADER = re.compile(r"[ \t]*[!#-'*+.0-9A-Z^-z|~\-]+[ \t]*=[ !#-+\--:<-\[\]-~]*|[ \t]*")
"""The form of headers that the SDK takes. Of others it logs the text, which is a credential, and leaves them out."""
_COMPRESSIONS = ("none", "gzip", "deflate")
_FILES = ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")


def names_of(signal: str, variable: str) -> tuple[str, str]:
    """The names of a variable, the signal's own (`TRACES`, `METRICS`) first, which wins over the common one."""
    return f"OTEL_EXPORTER_OTLP_{signal}_{variable}", f"OTEL_EXPORTER_OTLP_{variable}"


def check_collector(read: Environment, signal: str) -> None:
    """Raise `SettingsError` for the first invalid variable about the collector of `signal`."""

    def check(variable: str, parse: Callable[[str], object], default: str) -> None:
        for name in names_of(signal, variable):
            read.parsed(name, parse, default)

    check("PROTOCOL", one_of((PROTOCOL,)), PROTOCOL)
    check("COMPRESSION", one_of(_COMPRESSIONS), "none")
    check("ENDPOINT", _url, "http://localhost:4318")
    check("HEADERS", _headers, "none=")
    check("TIMEOUT", lambda text: number(float, text, "a number of seconds"), "10")
    for variable in _FILES:
        for name in filter(read.has, names_of(signal, variable)):
            read.parsed(name, _file)


def one_of(values: Sequence[str]) -> Callable[[str], str]:
    """A parser that takes these values, in any case."""

    def parse(text: str) -> str:
        if text.lower() not in values:
            raise ValueError(f"expected {' or '.join(values)}")
        return text

    return parse


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected a URL such as http://collector:4318")
    return text


def _headers(text: str) -> str:
    if not all(map(_HEADER.fullmatch, text.split(","))):
        raise ValueError("expected name=value, several separated by commas, special characters URL-encoded")
    return text


def _file(text: str) -> str:
    if not Path(text).is_file():
        raise ValueError("expected the path of a PEM file")
    return text
