"""A request's head, decoded from the parser's bytes, and the checks of RFC 9110 and 9112 that the parser omits.

llhttp in its strict mode refuses bad tokens, control characters, bare LF, folded fields, and two lengths or a length
beside a transfer-encoding. It accepts versions and protocols that we do not speak, codings other than chunked, repeated
or missing Host fields, and heads of any size: those are refused here. A refusal never quotes the request.
"""

from collections.abc import Sequence
from typing import Any

import httptools

from proxy.http_rules.header_names import HeaderNames
from proxy.records.messages import ALIKE

TOO_LONG = "the request line or a header field is too long"
BAD_METHOD = "the request line has no valid method"
BAD_TARGET = "the request target is malformed"
BAD_VERSION = "the request's version must be HTTP/1.0 or HTTP/1.1"
BAD_CODING = "transfer-encoding must be chunked, in HTTP/1.1, or absent"
BREAKS_A_RULE = "the request breaks a rule of HTTP"

_BLANKS = b" \t"
"""Stripped here after a value; the parser strips them only before it."""
_SINGLETONS = frozenset(
    (
        *("content-length", "content-location", "content-range", "content-type", "etag", "host", "max-forwards"),
        *("server", "transfer-encoding", "user-agent"),
    )
)
"""Fields that two readers could resolve differently if they are repeated."""
_CREDENTIAL_FIELDS = frozenset(("authorization", "x-api-key"))

RawFields = Sequence[tuple[bytes, bytes]]


_NO_NAMES = HeaderNames()


class ParsedHead:
    """Method, target and fields of one request, without its `content-length`: that is `declared_bytes` alone.

    Requests that differ only in their length may share a head (`heads_seen.py`), so it does not change once it is read.
    """

    __slots__ = (
        *("_names", "_raw", "_repeated", "chunked", "closes", "declared_bytes", "facts", "fault", "first", "method"),
        *("modern", "repeats", "target"),
    )

    def __init__(self, method: str, target: str) -> None:
        self.method = method
        self.target = target
        self.modern = True
        """True if the version is HTTP/1.1, not HTTP/1.0."""
        self.closes = False
        """True if no request may follow: the caller asks so, or speaks HTTP/1.0, or asked for CONNECT."""
        self.fault = ""
        """The reason to refuse the request; "" if it is valid."""
        self.first: dict[str, str] = {}
        """The first value of each field."""
        self.facts: dict[str, Any] = {}
        """`Incoming.facts`."""
        self.repeats = False
        """`Incoming.repeats`."""
        self.chunked = False
        self.declared_bytes: int | None = None
        self._names = _NO_NAMES
        self._raw: RawFields = ()
        self._repeated = False

    @classmethod
    def unreadable(cls, fault: str) -> "ParsedHead":
        """A head that stands for malformed bytes."""
        head = cls("", "")
        head.modern = False
        head.closes = True
        head.fault = fault
        return head

    @property
    def fields(self) -> list[tuple[str, str]]:
        """All fields in order, decoded on each access: few calls need more than the first values."""
        names = self._names
        return [
            (names[name], value.rstrip(_BLANKS).decode("utf-8", "surrogateescape"))
            for name, value in self._raw
            if names[name] != "content-length"
        ]

    def values(self, name: str) -> Sequence[str]:
        """All values of one field, in order."""
        if self._repeated:
            return [value for field, value in self.fields if field == name]
        value = self.first.get(name)
        return () if value is None else (value,)

    @property
    def framing(self) -> bytes:
        """The field that frames the body; b"" without a body."""
        if self.chunked:
            return b"transfer-encoding: chunked"
        return b"content-length: %d" % self.declared_bytes if self.declared_bytes else b""

    @property
    def is_plain(self) -> bool:
        """True if a body of the declared length follows, in the same protocol, and nothing after it."""
        is_other = self.fault or not self.modern or self.method == "CONNECT" or "upgrade" in self.first
        return self.declared_bytes is not None and not is_other

    def take_fields(self, raw: RawFields, names: HeaderNames) -> None:
        """Decode `raw` and apply the checks that the parser omits."""
        self._raw = raw
        self._names = names
        first = self.first
        for raw_name, raw_value in raw:
            name = names[raw_name]
            if name not in first:
                first[name] = raw_value.rstrip(_BLANKS).decode("utf-8", "surrogateescape")
            else:
                self._repeated = True
                if name in _SINGLETONS:
                    self.fault = BREAKS_A_RULE
        if self.modern and "host" not in first:
            self.fault = BREAKS_A_RULE
        if "transfer-encoding" in first:
            self.chunked = True
            if not self.modern or first["transfer-encoding"].lower() != "chunked":
                self.fault = BAD_CODING
        elif "content-length" in first:
            self.declared_bytes = int(first.pop("content-length").lstrip("0") or "0")  # `int` refuses 4 301 digits

    def presents(self, credential: bytes, place: int) -> bool:
        """Return whether the field at this place, of those that arrived, presents this credential, and none repeats."""
        if self._repeated or place >= len(self._raw):
            return False
        name, value = self._raw[place]
        return self._names[name] in _CREDENTIAL_FIELDS and value.endswith(credential)

    def with_credential(self, credential: bytes, place: int) -> "ParsedHead":
        """The head of a request that differs only in this credential. Its field is at `place`, as `presents` says."""
        head = ParsedHead(self.method, self.target)
        head.facts[ALIKE] = self.facts
        head.closes = self.closes
        head.declared_bytes = self.declared_bytes
        head._names = self._names
        head._raw = raw = list(self._raw)
        name, value = raw[place]
        value = value[: -len(credential)] + credential
        raw[place] = name, value
        head.first = self.first | {self._names[name]: value.decode()}
        return head

    def resolve_target(self) -> None:
        """Reduce the absolute form to path and query; its host replaces the `Host` field (RFC 9112 3.2.2)."""
        if self.method == "CONNECT":  # its target is a host, without a path
            self.target = "/"
            return
        if self.target == "*" and self.method == "OPTIONS":
            return
        try:
            url = httptools.parse_url(self.target.encode())
        except httptools.HttpParserInvalidURLError:
            self.fault = BAD_TARGET
            return
        if not url.host:
            self.fault = BAD_TARGET
            return
        host = url.host.decode()
        self.first["host"] = host if url.port is None else f"{host}:{url.port}"
        query = "" if url.query is None else f"?{url.query.decode()}"
        self.target = f"{(url.path or b'/').decode()}{query}"
