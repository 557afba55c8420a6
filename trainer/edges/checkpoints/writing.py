"""Writes below an open directory that a job's user may change meanwhile: no symbolic link is followed."""

import contextlib
import os


def make_parents(root: int, path: str) -> None:
    """Make the directories that the file at `path` is in. OSError if one is something else, also a symbolic link."""
    parents = path.split("/")[:-1]
    with contextlib.ExitStack() as opened:
        directory = root
        for name in parents:
            is_new = _make_directory(directory, name)
            directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            opened.callback(os.close, directory)
            if is_new:
                give(directory, root)


def _make_directory(directory: int, name: str) -> bool:
    """Make the directory; return whether it is new."""
    try:
        os.mkdir(name, 0o700, dir_fd=directory)
    except FileExistsError:
        return False
    return True


def give(descriptor: int, root: int) -> None:
    """Give what was made to whom the root belongs to."""
    if os.geteuid() == 0:
        owner = os.fstat(root)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def write_all(descriptor: int, piece: bytes) -> None:
    """Write all of it."""
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
