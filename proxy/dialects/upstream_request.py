"""A request in the target's dialect, or the field that cannot be translated.

Pure values. `registry.py` picks the provider's rules; `metering.AnswerReader` reads the answer.
"""

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

HeaderFields = dict[str, str]

GLOBAL = "global"


@dataclass(slots=True)
class UpstreamRequest:
    """Path and fields of a request for a target. `headers`: those that the dialect sets, credential included.

    Their names are in lower case. They replace the caller's fields of the same names, and no credential of the caller
    may be added to them.
    """

    path: str
    headers: HeaderFields
    location: str = ""
    """The vendor's cloud region: replaces `{location}` in a base URL. `global` uses the host without a region."""
    query: str = ""
    """The query string, without its question mark."""

    def url_at(self, base_url: str) -> str:
        """The URL to call. A base URL that ends in the API's version (`…/v1`, as SDKs write it) keeps it once."""
        url = _url(base_url, self.path, self.location)
        return f"{url}?{self.query}" if self.query else url


def origin_of(url: str) -> str:
    """The scheme, host and port of a base URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def bearer_headers(credential: str | None) -> HeaderFields:
    """The fields of a JSON request with a bearer credential, if there is one."""
    fields = {"content-type": "application/json"}
    if credential:
        fields["authorization"] = f"Bearer {credential}"
    return fields


@lru_cache(maxsize=4096)
def _url(base_url: str, path: str, location: str) -> str:
    base = base_url.rstrip("/")
    if location == GLOBAL:
        base = base.replace("{location}-", "")
    base = base.replace("{location}", location)
    version = path[: path.find("/", 1)]
    return base + path[len(version) :] if base.endswith(version) else base.removesuffix("/v1") + path
