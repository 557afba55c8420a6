"""Unpacks an archive in a node's own directory, before the job runs. Blocking.

The archive and other jobs of the same user may try to lead the trainer elsewhere: a path is walked part by part, and no
symbolic link is followed. See docs/reference/training.md#uploads.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from policy.training.artifacts import Artifact
from policy.training.store_keys import is_plain
from runtime.object_store import NotInStoreError, ObjectStore, StoreError
from trainer.backend import ArtifactError, BackendAwayError
from trainer.edges.artifacts.archive import ArchiveReader, BadArchiveError, Member
from trainer.edges.artifacts.content import content_of
from trainer.edges.checkpoints.directory import opened_below, opened_directory
from trainer.edges.checkpoints.writing import give, make_parents, write_all

MAX_UNPACKED_BYTES = 50 * 1024**3
MAX_MEMBERS = 200_000
MAX_DEPTH = 64
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


def unpack_into(directory: Path, store: ObjectStore, artifact: Artifact) -> None:
    """Unpack the archive, verified. What it has under a name that is taken takes its place, directories aside.

    BackendAwayError if the store is away; ArtifactError.
    """
    try:
        with opened_directory(directory) as root:
            _unpack(root, content_of(store, artifact))
    except BadArchiveError as error:
        raise ArtifactError(f"artifact {artifact.key} cannot be unpacked: {error}") from None
    except NotInStoreError:
        raise ArtifactError(f"artifact {artifact.key} is not in the checkpoint store") from None
    except StoreError as error:
        raise BackendAwayError(f"the checkpoint store {store} cannot be used ({error})") from error
    except OSError as error:
        raise ArtifactError(f"artifact {artifact.key} cannot be unpacked: {error.strerror}") from error


def _unpack(root: int, pieces: Iterator[bytes]) -> None:
    reader = ArchiveReader(pieces)
    size_bytes = 0
    for count, member in enumerate(reader.members(), 1):
        size_bytes += member.size_bytes
        if count > MAX_MEMBERS or size_bytes > MAX_UNPACKED_BYTES:
            raise BadArchiveError(f"it has more than {MAX_MEMBERS} members, or more than {MAX_UNPACKED_BYTES} bytes")
        _place(root, member, reader.content(member))
    for _ in pieces:  # behind the archive's end, so that all of its parts are verified
        pass


def _place(root: int, member: Member, content: Iterator[bytes]) -> None:
    path = _path(member.name)
    if not path:  # the directory itself
        return
    make_parents(root, f"{path}/" if member.is_directory else path)
    if member.is_directory:
        return
    with _parent(root, path) as (parent, name):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        if member.target is not None:
            os.symlink(_checked_target(path, member.target), name, dir_fd=parent)
            _give_link(parent, name, root)
            return
        if member.same_as is not None:
            _link(root, _path(member.same_as), parent, name)
            return
    with opened_below(root, path, _WRITE) as descriptor:
        give(descriptor, root)
        os.fchmod(descriptor, 0o755 if member.is_executable else 0o644)
        for piece in content:
            write_all(descriptor, piece)


def _path(name: str) -> str:
    """A member's path below the directory; "" for that itself. BadArchiveError if it leads elsewhere."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or not all(map(is_plain, parts)):
        raise BadArchiveError(f"the name {name[:200]!r} is absolute, has .., or has characters that no name may have")
    if len(parts) > MAX_DEPTH:
        raise BadArchiveError(f"it has more than {MAX_DEPTH} levels of directories")
    return "/".join(parts)


def _checked_target(path: str, target: str) -> str:
    """The target of a symbolic link at `path`. BadArchiveError if it leads out of the directory.

    Behind a name, which may be a link too, `..` could lead anywhere.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((place for place, part in enumerate(parts) if part != ".."), len(parts))
    if target.startswith("/") or ups > path.count("/") or not all(map(is_plain, parts[ups:])):
        raise BadArchiveError(f"the symbolic link {path[:200]!r} leads out of the directory, or has .. behind a name")
    return target


@contextlib.contextmanager
def _parent(root: int, path: str) -> Iterator[tuple[int, str]]:
    """A descriptor of the directory that a path is in, and the name there."""
    parents, _, name = path.rpartition("/")
    if not parents:
        yield root, name
        return
    with opened_below(root, parents, _DIRECTORY) as parent:
        yield parent, name


def _link(root: int, path: str, parent: int, name: str) -> None:
    """Give a file that was unpacked before another name. BadArchiveError if there is none."""
    with _parent(root, path) as (place, earlier):
        try:
            if not stat.S_ISREG(os.stat(earlier, dir_fd=place, follow_symlinks=False).st_mode):
                raise FileNotFoundError
            os.link(earlier, name, src_dir_fd=place, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            raise BadArchiveError(f"{path[:200]!r}, which another member refers to, is no file before it") from None


def _give_link(parent: int, name: str, root: int) -> None:
    if os.geteuid() == 0:
        owner = os.fstat(root)
        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=parent, follow_symlinks=False)
