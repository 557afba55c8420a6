"""Weights of training jobs: files from elsewhere that are there before the first command. Pure.

See docs/reference/training.md#weights.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from policy.training.wire import optional_text, text, texts

WEIGHTS_PATH = "weights"
"""The directory of weights, relative to the job's own."""
MAX_WEIGHTS = 20
"""The most entries of one job."""
MAX_SOURCE_CHARS = 2048
MAX_PATTERNS = 20
"""The most allowed patterns of an entry, and the most ignored ones."""
MAX_PATTERN_CHARS = 255
MAX_KEY_BYTES = 1024
"""The longest key that S3 has."""
_HUB = "hf://"
_HTTPS = "https://"
_BUCKETS = ("s3://", "gs://", "r2://")
_ABSENT = ("azure://", "cw://")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,254}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_ACCOUNT = re.compile(r"[a-z0-9]{1,63}")


@dataclass(frozen=True, slots=True)
class HubSource:
    """A model repository of a Hugging Face hub. `revision`: a branch, a tag or a commit."""

    repository: str
    revision: str = "main"


@dataclass(frozen=True, slots=True)
class BucketSource:
    """The objects below a key of a bucket, or the one of that key. `account`: that of an R2 bucket, else ""."""

    scheme: str
    bucket: str
    key: str
    account: str = ""


@dataclass(frozen=True, slots=True)
class UrlSource:
    """One file. `policy.hosts.check_download_url` checks the URL."""

    url: str = field(repr=False)


Source = HubSource | BucketSource | UrlSource


def parse_source(source: str) -> Source:
    """The source that a text names. ValueError, whose message says what is expected, if it names none."""
    if not source.isprintable() or len(source) > MAX_SOURCE_CHARS:
        raise ValueError(f"must have at most {MAX_SOURCE_CHARS} characters, and no control characters")
    if source.startswith(_HUB):
        return _hub_source(source.removeprefix(_HUB))
    if source.startswith(_HTTPS):
        return UrlSource(source)
    for scheme in _BUCKETS:
        if source.startswith(scheme):
            return _bucket_source(scheme.removesuffix("://"), source.removeprefix(scheme))
    if source.startswith(_ABSENT):
        raise ValueError(
            "is in a store that is not read here; copy it to one of hf://, s3://, gs://, r2:// or https://, or download"
            " it in a start command"
        )
    raise ValueError("must begin with hf://, s3://, gs://, r2:// or https://")


def _hub_source(name: str) -> HubSource:
    repository, mark, revision = name.partition("@")
    if not _REPOSITORY.fullmatch(repository) or ".." in repository:
        raise ValueError("must be hf://owner/model, or hf://owner/model@revision; there are no datasets or spaces")
    if mark and (not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision):
        raise ValueError("the revision behind @ must be a branch, a tag or a commit")
    return HubSource(repository, revision) if mark else HubSource(repository)


def _bucket_source(scheme: str, name: str) -> BucketSource:
    bucket, _, key = name.partition("/")
    account = ""
    form = f"{scheme}://bucket/key"
    if scheme == "r2":
        account, _, bucket = bucket.partition(".")
        form = "r2://account_id.bucket/key"
    if not _BUCKET.fullmatch(bucket) or ".." in bucket or (account and not _ACCOUNT.fullmatch(account)):
        raise ValueError(f"must be {form}, with a bucket of small letters, digits, dots and hyphens")
    key = key.rstrip("/")
    if len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"the key must have at most {MAX_KEY_BYTES} bytes")
    return BucketSource(scheme, bucket, key, account)


@dataclass(frozen=True, slots=True)
class FilePatterns:
    """The files that are wanted of a source: those that an allowed pattern matches, or all without one, less those
    that an ignored one matches."""

    allowed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def match(self, path: str) -> bool:
        is_allowed = not self.allowed or any(matches(path, pattern) for pattern in self.allowed)
        return is_allowed and not any(matches(path, pattern) for pattern in self.ignored)


def matches(path: str, pattern: str) -> bool:
    """Return whether a pattern matches a whole path: `*` within a name, `**` any names, a last `/` all below.

    The time grows with the product of both lengths, whatever they are.
    """
    names = path.split("/")
    ends = {0}
    """The numbers of names that the parts of the pattern up to here can match."""
    for part in pattern.removesuffix("/").split("/") + ["**"] * pattern.endswith("/"):
        if not ends:
            return False
        if part == "**":
            ends = set(range(min(ends), len(names) + 1))
        else:
            ends = {end + 1 for end in ends if end < len(names) and fnmatchcase(names[end], part)}
    return len(names) in ends


@dataclass(frozen=True, slots=True)
class WeightsSpec:
    """An entry of a job: from where, to where below the directory of weights, and with which secret."""

    source: str = field(repr=False)
    location: str
    secret: str | None = None
    patterns: FilePatterns = FilePatterns()

    def to_wire(self) -> dict[str, Any]:
        secret = None if self.secret is None else {"secret": self.secret}  # as a variable's, by which it is found
        return {"source": self.source, "location": self.location, "auth": secret, **_patterns_to_wire(self.patterns)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "WeightsSpec":
        secret = None if wire["auth"] is None else text(wire["auth"], "secret")
        return cls(text(wire, "source"), text(wire, "location"), secret, _patterns_from_wire(wire))


@dataclass(frozen=True, slots=True)
class Weights:
    """The same for whoever fetches it, with the secret's value. Neither that nor the source's query may be shown."""

    source: str = field(repr=False)
    location: str
    credential: str | None = field(default=None, repr=False)
    patterns: FilePatterns = FilePatterns()

    @property
    def shown_source(self) -> str:
        """The source for people: a query may hold a signature."""
        return self.source.partition("?")[0]

    def to_wire(self) -> dict[str, Any]:
        own = {"source": self.source, "location": self.location, "credential": self.credential}
        return own | _patterns_to_wire(self.patterns)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "Weights":
        """The inverse of `to_wire`. Raises KeyError or TypeError that names the member if the shape is wrong."""
        credential = optional_text(wire, "credential")
        return cls(text(wire, "source"), text(wire, "location"), credential, _patterns_from_wire(wire))


def overlap(locations: Sequence[str]) -> int | None:
    """Return the place of the first location that is the same as an earlier one, inside of it or around it."""
    for place, location in enumerate(locations):
        if any(is_within(location, other) or is_within(other, location) for other in locations[:place]):
            return place
    return None


def is_within(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory}/")


def secret_names(weights: Iterable[WeightsSpec]) -> set[str]:
    return {one.secret for one in weights if one.secret is not None}


def _patterns_to_wire(patterns: FilePatterns) -> dict[str, Any]:
    return {"allowed": list(patterns.allowed), "ignored": list(patterns.ignored)}


def _patterns_from_wire(wire: Mapping[str, Any]) -> FilePatterns:
    return FilePatterns(texts(wire, "allowed"), texts(wire, "ignored"))
