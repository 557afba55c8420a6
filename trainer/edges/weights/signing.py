"""Signs GETs for S3 (AWS Signature Version 4), and reads the keys for that from a secret."""

import hashlib
import hmac
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlsplit

from trainer.backend import WeightsError

_ALGORITHM = "AWS4-HMAC-SHA256"
_NO_CONTENT = hashlib.sha256(b"").hexdigest()
_EXPECTED = (
    'its secret must be {"access_key_id": "…", "secret_access_key": "…", "region": "…"}, with region and session_token'
    " or without"
)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of an account. `region`: None if they do not name one."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    region: str | None = None
    session_token: str | None = field(default=None, repr=False)


def read_keys(secret: str) -> Keys:
    """WeightsError if the secret has another form than the original's."""
    try:
        members = json.loads(secret)
    except (ValueError, RecursionError):
        raise WeightsError(_EXPECTED) from None
    names = Keys.__dataclass_fields__
    values = [members.get(name) for name in names] if isinstance(members, dict) else []
    is_sendable = all(value is None or (isinstance(value, str) and value.isprintable()) for value in values)
    if not values or not values[0] or not values[1] or not is_sendable:
        raise WeightsError(_EXPECTED)
    key_id, key, region, token = values
    return Keys(str(key_id), str(key), region or None, token or None)


@dataclass(frozen=True, slots=True)
class SignedAccess:
    """Signs for a region. URLs have their parameters in order, all encoded in the one way of S3."""

    keys: Keys = field(repr=False)
    region: str

    @property
    def is_anonymous(self) -> bool:
        return False

    def headers(self, url: str) -> dict[str, str]:
        return self.headers_at(url, datetime.now(UTC))

    def headers_at(self, url: str, now: datetime) -> dict[str, str]:
        parts = urlsplit(url)
        date = f"{now:%Y%m%dT%H%M%SZ}"
        signed = {"host": parts.netloc, "x-amz-content-sha256": _NO_CONTENT, "x-amz-date": date}
        if self.keys.session_token is not None:
            signed["x-amz-security-token"] = self.keys.session_token
        names = ";".join(signed)
        lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
        canonical = "\n".join(("GET", parts.path or "/", parts.query, lines, names, _NO_CONTENT))
        scope = f"{date[:8]}/{self.region}/s3/aws4_request"
        key = f"AWS4{self.keys.secret_access_key}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        text = f"{_ALGORITHM}\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        credential = f"{self.keys.access_key_id}/{scope}"
        own = {"Authorization": f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"}
        return own | {name: value for name, value in signed.items() if name != "host"}
