"""What a dialect makes of a call: the request as the target wants it, or the field that stands in the way.

Pure values; nothing here knows a provider, `registry.py` picks who does. How an answer is read back is
`metering.AnswerReader`.
"""

from dataclasses import dataclass
from functools import lru_cache

from proxy.json_text.segmented_body import RequestBody

HeaderFields = dict[str, str]

GLOBAL = "global"


class UntranslatableError(Exception):
    """The call cannot be asked in the target's dialect; `field` names what stands in the way (400)."""

    def __init__(self, field: str, reason: str = "the target of this slug has nothing like it") -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


@dataclass(slots=True)
class UpstreamRequest:
    """A request as the target wants it. `headers`: those the dialect sets, names in lower case.

    A caller's header of the same name must not go upstream beside them, nor any credential of the caller's.
    """

    path: str
    headers: HeaderFields
    body: RequestBody
    location: str = ""
    """Of the vendor's cloud; takes the place of `{location}` in a base URL. The global one has the bare host."""
    query: str = ""
    """What goes behind the path, without its question mark."""

    def url_at(self, base_url: str) -> str:
        """The URL to call. A base that already ends in the API's version (`…/v1`, as SDKs write it) is not doubled."""
        url = _url(base_url, self.path, self.location)
        return f"{url}?{self.query}" if self.query else url


@lru_cache(maxsize=4096)
def _url(base_url: str, path: str, location: str) -> str:
    base = base_url.rstrip("/")
    if location == GLOBAL:
        base = base.replace("{location}-", "")
    base = base.replace("{location}", location)
    version = path[: path.find("/", 1)]
    return base + (path[len(version) :] if base.endswith(version) else path)
