"""The content of an artifact: its parts, one behind the other, each verified by size and SHA-256. Blocking."""

import hashlib
from collections.abc import Iterator

from policy.training.artifacts import Artifact, ArtifactPart
from runtime.object_store import ObjectStore
from trainer.backend import ArtifactError


def content_of(store: ObjectStore, artifact: Artifact) -> Iterator[bytes]:
    """The archive in pieces, none of them empty. A part's last piece comes once all of it is verified.

    ArtifactError; StoreError.
    """
    for part in artifact.parts:
        yield from _content(store, part, artifact.key)


def _content(store: ObjectStore, part: ArtifactPart, key: str) -> Iterator[bytes]:
    digest = hashlib.sha256()
    size_bytes = 0
    last = b""
    for piece in store.read(part.store_key):
        digest.update(piece)
        size_bytes += len(piece)
        if size_bytes > part.size_bytes:
            break
        if last:
            yield last
        last = piece
    if size_bytes != part.size_bytes or digest.hexdigest() != part.sha256:
        raise ArtifactError(f"artifact {key} is damaged in the store: a part has changed; upload it again")
    if last:
        yield last
