"""Lists a model's files on a Hugging Face hub, by its HTTP API: the commit of the revision, then the tree of that."""

import re
from typing import Any
from urllib.parse import quote, urljoin

from policy.training.weights import HubSource
from policy.training.wire import count, text
from trainer.backend import WeightsError
from trainer.edges.weights.downloads import Downloads
from trainer.edges.weights.remote_files import MAX_FILES, Access, RemoteFile, Request, origin_of

_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_PAGES = 100
_MAX_ENTRIES = 2 * MAX_FILES
"""The most files and directories that are looked at; patterns may leave most of them out."""


async def hub_files(downloads: Downloads, source: HubSource, access: Access) -> list[RemoteFile]:
    """The files of the repository at one commit. SourceAwayError; WeightsError."""
    base = downloads.terms.hub_url
    origin = origin_of(base)
    revision = f"{base}/api/models/{source.repository}/revision/{quote(source.revision, safe='')}"
    head, _ = await downloads.read_json(Request(revision, access, origin))
    commit: Any = head.get("sha") if isinstance(head, dict) else None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise WeightsError("the hub does not name the commit of the revision")
    resolved = f"{base}/{source.repository}/resolve/{commit}"
    entries = list[Any]()
    url: str | None = f"{base}/api/models/{source.repository}/tree/{commit}?recursive=true"
    for _ in range(_MAX_PAGES):
        if url is None or len(entries) > _MAX_ENTRIES:
            break
        page, answer = await downloads.read_json(Request(url, access, origin))
        entries += page if isinstance(page, list) else [None]
        following = answer.links["next"].get("url") if "next" in answer.links else None
        url = None if following is None else _checked(urljoin(url, str(following)), origin)
    if url is not None:
        raise WeightsError("the hub's list of files is too long")
    files = [_file(entry, resolved) for entry in entries]
    return [
        RemoteFile(path, Request(address, access, origin), size_bytes, sha256)
        for path, address, size_bytes, sha256 in filter(None, files)
    ]


def _checked(url: str, origin: str) -> str:
    if origin_of(url) != origin:
        raise WeightsError("the hub's list of files goes on elsewhere")
    return url


def _file(entry: Any, resolved: str) -> tuple[str, str, int, str | None] | None:
    """A file's path, URL, size and SHA-256, which large files have; None for a directory."""
    try:
        if text(entry, "type") != "file":
            return None
        path = text(entry, "path")
        lfs = entry.get("lfs")
        sha256 = None if lfs is None else text(lfs, "oid")
        size_bytes = count(entry if lfs is None else lfs, "size")
    except (KeyError, TypeError, AttributeError):
        raise WeightsError("the hub's list of files cannot be read") from None
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise WeightsError("the hub's list of files cannot be read")
    return path, f"{resolved}/{quote(path, errors='replace')}", size_bytes, sha256
