"""The caches of projects on this machine: a directory for each, kept between jobs.

`<training directory>/caches/<project id>`. Other jobs' users must not reach it: it belongs to the user of the
project's jobs that run, or ran last.
See docs/reference/training.md#caches.
"""

import os
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from policy.training.caches import MAX_ENTRIES, CacheEntry, CacheSummary, FileType
from policy.training.store_keys import is_plain
from trainer.edges.local.job_users import Owner

_CACHES = "caches"
_MAX_DEPTH = 32
_MAX_PATH_CHARS = 4 * 1024 * 1024
"""The most characters of all paths of a summary."""


@dataclass(frozen=True, slots=True)
class ProjectCaches:
    """All caches below the training directory. Blocking."""

    root: Path

    def directory(self, project_id: str) -> Path:
        """Raises ValueError if the id is no plain name."""
        if not is_plain(project_id):
            raise ValueError(f"{project_id!r} is no project's id")
        return self.root / _CACHES / project_id

    def make(self, project_id: str, owner: Owner | None) -> None:
        """Make the cache, unless it is there, and give it to the user of the job that is about to start.

        No job of another user has it: jobs of a project that run together have one user. OSError.
        """
        path = self.directory(project_id)
        path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        path.parent.chmod(0o711)
        path.mkdir(mode=0o700, exist_ok=True)
        if owner is not None and path.stat().st_uid != owner.uid:
            # `chown` takes the directory itself last, so its owner tells whether all of it was given.
            _run(["chown", "-R", "-h", "-P", "--", f"{owner.uid}:{owner.gid}", str(path)])
            if path.stat().st_uid != owner.uid:
                raise OSError(f"the cache could not be given to user {owner.uid}: {path}")

    def close_to(self, owner: Owner, but: str) -> None:
        """Take the caches of other projects than `but` from a user whose jobs had them: a new job gets this user."""
        try:
            names = os.listdir(self.root / _CACHES)
        except FileNotFoundError:
            return
        for name in names:
            path = self.root / _CACHES / name
            if name != but and path.stat().st_uid == owner.uid:
                os.chown(path, os.geteuid(), os.getegid())

    def remove(self, project_id: str) -> None:
        """Raises OSError if something is left."""
        path = self.directory(project_id)
        if path.exists():
            _run(["chmod", "-R", "u+rwX", "--", str(path)])
            _run(["rm", "-rf", "--", str(path)])
        if path.exists():
            raise OSError(f"the cache of project {project_id} could not be removed: {path}")

    def summary(self, project_id: str) -> CacheSummary | None:
        """Return its content now, within bounds; None if there is no such directory."""
        path = self.directory(project_id)
        if not path.is_dir():
            return None
        entries = list[CacheEntry]()
        char_count = 0
        for entry in _entries(path):
            char_count += len(entry.path)
            if len(entries) == MAX_ENTRIES or char_count > _MAX_PATH_CHARS:
                break
            entries.append(entry)
        return CacheSummary(project_id, time.time_ns() // 1_000_000, tuple(entries))


def _entries(root: Path) -> Iterator[CacheEntry]:
    """Files and directories, level by level. A job may change them meanwhile: no symbolic link is followed."""
    directories = [""]
    for _ in range(_MAX_DEPTH):
        next_directories = list[str]()
        for prefix in directories:
            for name, state in _listed(root, prefix):
                yield _entry(f"{prefix}{name}", state)
                if stat.S_ISDIR(state.st_mode):
                    next_directories.append(f"{prefix}{name}/")
        directories = next_directories


def _listed(root: Path, prefix: str) -> Sequence[tuple[str, os.stat_result]]:
    """The entries of one directory, by name; none if it is gone or cannot be read."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for part in prefix.split("/")[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        with os.scandir(descriptor) as entries:
            names = sorted(entry.name for _, entry in zip(range(MAX_ENTRIES), entries, strict=False))
        return [(name, os.stat(name, dir_fd=descriptor, follow_symlinks=False)) for name in names]
    except OSError:
        return ()
    finally:
        os.close(descriptor)


def _entry(path: str, state: os.stat_result) -> CacheEntry:
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    modified_ms = max(0, state.st_mtime_ns // 1_000_000)
    return CacheEntry(text, state.st_size, modified_ms, _file_type(state.st_mode), stat.filemode(state.st_mode))


def _file_type(mode: int) -> FileType:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _run(argv: Sequence[str]) -> None:
    subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
