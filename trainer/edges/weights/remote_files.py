"""Files of a source, and how each is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from policy.training.store_keys import is_plain_path
from trainer.backend import WeightsError

MAX_FILES = 10_000
MAX_PATH_BYTES = 1024
MAX_DEPTH = 32


class SourceAwayError(Exception):
    """The source cannot be reached, or cannot answer now: trying again may help. The message says why."""


class RefusedError(WeightsError):
    """The source refuses to show what was asked for."""


class Access(Protocol):
    """The credential of a source."""

    @property
    def is_anonymous(self) -> bool: ...

    def headers(self, url: str) -> dict[str, str]:
        """The header fields by which a GET of this URL is allowed."""
        ...


@dataclass(frozen=True, slots=True)
class Bearer:
    """A token; None: no credential."""

    token: str | None = field(default=None, repr=False)

    @property
    def is_anonymous(self) -> bool:
        return self.token is None

    def headers(self, url: str) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}


def bearer(credential: str | None) -> Bearer:
    """WeightsError if the secret cannot be sent as a token."""
    if credential is None:
        return Bearer()
    token = credential.strip()
    if not token or not all("!" <= char <= "~" for char in token):
        raise WeightsError(
            "its secret cannot be sent as a token: it has blanks or characters outside of ASCII, or none"
        )
    return Bearer(token)


@dataclass(frozen=True, slots=True)
class Request:
    """A GET. `operator_origin`: the origin that the operator has set, which may be anywhere; "": there is none."""

    url: str = field(repr=False)
    access: Access = field(default=Bearer(), repr=False)
    operator_origin: str = ""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a source. `path`: below the place of the weights; "": that is the file itself.

    `size_bytes`, `sha256`: None where the source does not list them.
    """

    path: str
    request: Request
    size_bytes: int | None = None
    sha256: str | None = None


def origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def check_files(files: Sequence[RemoteFile]) -> None:
    """WeightsError if there are none, too many, or one whose name cannot be a file's here."""
    if not files:
        raise WeightsError("it has no files that allow_patterns and ignore_patterns leave")
    if len(files) > MAX_FILES:
        raise WeightsError(f"it has more than {MAX_FILES} files; leave some out by ignore_patterns")
    for file in files:
        path = file.path
        is_bounded = len(path.encode(errors="replace")) <= MAX_PATH_BYTES and path.count("/") < MAX_DEPTH
        if path and not (is_plain_path(path) and is_bounded):
            raise WeightsError(f"it has a file whose name cannot be used: {path[:100]!r}")
