"""Keys in the checkpoint store: `<job id>/<name>/<version>/<path>` of a checkpoint's file, encoded, and uploads. Pure.

Stores treat some characters in their own way (`*`, `?`, `#`, `::`), so keys have none of them. Names come from jobs: a
part that would leave its directory is refused.

See docs/reference/training.md#checkpoints.
"""

import hashlib
import unicodedata
from urllib.parse import quote

MAX_NAME_BYTES = 255
_SAFE = "=@+,"
_MAX_PART_CHARS = 240
_MAX_PATH_CHARS = 700
_HASHED = "%-"
"""The prefix of names that are hashed because they are long. `quote` never writes it."""


def is_plain(name: str) -> bool:
    """Return whether a name can be part of a path everywhere: no `/`, `.`, `..`, control or unencodable characters."""
    if name in ("", ".", "..") or "/" in name or any(unicodedata.category(char) in ("Cc", "Cs") for char in name):
        return False
    return len(name.encode()) <= MAX_NAME_BYTES


def is_plain_path(path: str) -> bool:
    return all(map(is_plain, path.split("/")))


def location(job_id: str, name: str, version: str) -> str:
    """The directory of one content of a checkpoint. Raises ValueError if the name is not plain."""
    if not is_plain(name):
        raise ValueError("name must be a plain file name")
    encoded = quote(name, safe=_SAFE)
    return f"{job_id}/{encoded if len(encoded) <= _MAX_PART_CHARS else _hashed(name)}/{version}"


def store_key(location: str, path: str) -> str:
    """A file of the checkpoint at `location`. Raises ValueError if the path is not plain."""
    if not is_plain_path(path):
        raise ValueError("path must be relative, without . and ..")
    parts = [quote(part, safe=_SAFE) for part in path.split("/")]
    is_short = max(map(len, parts)) <= _MAX_PART_CHARS and sum(map(len, parts)) + len(parts) <= _MAX_PATH_CHARS
    return f"{location}/{'/'.join(parts) if is_short else _hashed(path)}"


def manifest_key(location: str) -> str:
    """The key of the manifest, written once all else at `location` is verified. No file's key can be the same."""
    return f"{location}/%manifest"


def restored_key(job_id: str) -> str:
    """The key that says what the job's present attempt was restored from. No checkpoint's name can give the same."""
    return f"{job_id}/%restored"


def upload_location(upload_id: str) -> str:
    """The directory of an upload's parts. No job's id is `uploads`."""
    return f"uploads/{upload_id}"


def part_key(upload_id: str, part_id: str) -> str:
    """The key of one part of an upload."""
    return f"{upload_location(upload_id)}/{part_id}"


def _hashed(text: str) -> str:
    return _HASHED + hashlib.sha256(text.encode()).hexdigest()
