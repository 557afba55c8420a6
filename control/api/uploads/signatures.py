"""Signatures of AWS (Signature Version 4, in the header field `Authorization`). Pure.

Paths are taken as they were sent, as S3 does: they are not encoded a second time.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, unquote

from control.api.uploads.s3_errors import S3Error, invalid_request

ALGORITHM = "AWS4-HMAC-SHA256"
MAX_SKEW = timedelta(minutes=15)
_SERVICE = "s3"
_TERMINATOR = "aws4_request"
_TIME = "%Y%m%dT%H%M%SZ"
_FIELDS = re.compile(r"Credential=([^,\s]+)\s*,\s*SignedHeaders=([^,\s]+)\s*,\s*Signature=([0-9a-f]{64})")
_SPACES = re.compile(" +")
Headers = Sequence[tuple[str, str]]
"""Names in lower case, and values; names may repeat."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request as it was signed. `target`: its path and query, as the request line has them."""

    method: str
    target: str
    headers: Headers = field(repr=False)

    def header(self, name: str) -> str | None:
        """The value of a header field; None if it is missing. S3Error if there are several."""
        values = [value.strip() for present, value in self.headers if present == name]
        if len(values) > 1:
            raise invalid_request(f"{name} is given more than once")
        return values[0] if values else None


@dataclass(frozen=True, slots=True)
class Signature:
    """The content of `Authorization`."""

    access_key_id: str
    date: str
    region: str
    signed_headers: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, request: SignedRequest) -> "Signature":
        """S3Error for a request that is not signed so."""
        text = request.header("authorization")
        if text is None:
            raise S3Error(403, "AccessDenied", f"Sign the request in its Authorization header, by {ALGORITHM}")
        algorithm, _, rest = text.partition(" ")
        if algorithm != ALGORITHM:
            raise invalid_request(f"Please use {ALGORITHM}")
        match = _FIELDS.fullmatch(rest.strip())
        scope = match[1].split("/") if match else []
        if match is None or len(scope) != 5 or scope[3:] != [_SERVICE, _TERMINATOR]:
            raise S3Error(400, "AuthorizationHeaderMalformed", "The Authorization header is malformed")
        return cls(scope[0], scope[1], scope[2], tuple(match[2].split(";")), match[3])

    def check(self, request: SignedRequest, secret: str, now: datetime) -> None:
        """S3Error unless this is the signature of the request with that secret, and of about now."""
        signed_at = request.header("x-amz-date") or ""
        try:
            skew = abs(now - datetime.strptime(signed_at, _TIME).replace(tzinfo=UTC))
        except ValueError:
            raise S3Error(403, "AccessDenied", "x-amz-date must be a time such as 20260131T120000Z") from None
        if skew > MAX_SKEW:
            message = "The difference between the request time and the server's time is too large. Set the clock"
            raise S3Error(403, "RequestTimeTooSkewed", message)
        required = {"host", *(name for name, _ in request.headers if name.startswith("x-amz-"))}
        if self.date != signed_at[:8] or not required <= set(self.signed_headers):
            raise S3Error(403, "AccessDenied", f"These headers must be signed: {', '.join(sorted(required))}")
        if not hmac.compare_digest(self.digest, self._expected(request, secret, signed_at)):
            message = "The signature does not match. Check the secret access key, and that nothing between changes Host"
            raise S3Error(403, "SignatureDoesNotMatch", message)

    def _expected(self, request: SignedRequest, secret: str, signed_at: str) -> str:
        scope = "/".join((self.date, self.region, _SERVICE, _TERMINATOR))
        digest = hashlib.sha256(self._canonical(request).encode("utf-8", "surrogateescape")).hexdigest()
        key = f"AWS4{secret}".encode()
        for part in (self.date, self.region, _SERVICE, _TERMINATOR):
            key = hmac.digest(key, part.encode(), "sha256")
        return hmac.digest(key, f"{ALGORITHM}\n{signed_at}\n{scope}\n{digest}".encode(), "sha256").hex()

    def _canonical(self, request: SignedRequest) -> str:
        path, _, query = request.target.partition("?")
        headers = "".join(f"{name}:{_values(request.headers, name)}\n" for name in self.signed_headers)
        payload = request.header("x-amz-content-sha256") or ""
        names = ";".join(self.signed_headers)
        return "\n".join((request.method, path or "/", canonical_query(query), headers, names, payload))


def canonical_query(query: str) -> str:
    """The parameters in their order, each encoded in the one way."""
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    return "&".join(sorted(f"{_encoded(name)}={_encoded(value)}" for name, _, value in pairs))


def parameters(target: str) -> dict[str, str]:
    """The decoded parameters of a target's query. S3Error if one is given twice."""
    _, _, query = target.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    values = {unquote(name): unquote(value) for name, _, value in pairs}
    if len(values) < len(pairs):
        raise invalid_request("A parameter is given twice")
    return values


def _values(headers: Iterable[tuple[str, str]], name: str) -> str:
    return ",".join(_SPACES.sub(" ", value.strip()) for present, value in headers if present == name)


def _encoded(text: str) -> str:
    return quote(unquote(text), safe="-_.~")
