"""Reads settings from environment variables; both planes use it (docs/reference/settings.md#how-settings-are-read).

An empty value counts as unset, as in `docker run -e NAME=`. A bad value is a `SettingsError` that names the setting and
says what is expected. It never quotes the value, which may be a secret.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from runtime.redis.url import RedisUrl

Parsed = TypeVar("Parsed")
MIN_TOKEN_CHARS = 16


class SettingsError(ValueError):
    """A setting is missing or malformed; the message names it and says what is expected, never its value."""


class Environment:
    """One environment, read by the full names of its variables."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def has(self, name: str) -> bool:
        return bool(self._environ.get(name, "").strip())

    def text(self, name: str, default: str | None = None) -> str:
        """The value without surrounding blanks. `SettingsError` when it is unset and has no default."""
        value = self._environ.get(name, "").strip() or default
        if value is None:
            raise SettingsError(f"{name} is not set, and there is no default for it")
        return value

    def parsed(self, name: str, parse: Callable[[str], Parsed], default: str | None = None) -> Parsed:
        """Return what `parse` makes of the value; its ValueError becomes a `SettingsError`."""
        text = self.text(name, default)
        try:
            return parse(text)
        except ValueError as error:
            raise SettingsError(f"{name}: {error}") from None

    def seconds(self, name: str, default: float) -> float:
        """A number of seconds above 0."""
        return self.parsed(name, _positive, str(default))

    def count(self, name: str, default: int) -> int:
        """A whole number, 1 or more."""
        return self.parsed(name, _whole, str(default))


def number(kind: Callable[[str], Any], text: str, expected: str) -> Any:
    """`text` as a number; the ValueError says what was expected."""
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"expected {expected}") from None


def http_url(text: str) -> str:
    """Return the URL without its last slash."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise ValueError("expected an http(s)://host[:port] URL without credentials")
    return text.rstrip("/")


def redis_url(text: str) -> str:
    RedisUrl.parse(text)
    return text


def access_token(text: str) -> str:
    if len(text) < MIN_TOKEN_CHARS:
        raise ValueError(f"expected at least {MIN_TOKEN_CHARS} characters")
    return text


def switch(text: str) -> bool:
    """1 or 0."""
    if text not in ("0", "1"):
        raise ValueError("expected 1 or 0")
    return text == "1"


def _positive(text: str) -> float:
    value = number(float, text, "a number of seconds above 0")
    if not 0 < value < float("inf"):
        raise ValueError("expected a number of seconds above 0")
    return float(value)


def _whole(text: str) -> int:
    value = number(int, text, "a whole number, 1 or more")
    if value < 1:
        raise ValueError("expected a whole number, 1 or more")
    return int(value)
