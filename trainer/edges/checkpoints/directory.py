"""The checkpoint directory of a job, read as something that the job may change at any moment to harm the trainer.

A symbolic link of the job's is never followed, not even one that takes the place of a directory while it is read: all
paths are opened part by part, relative to what is open already. Special files are skipped.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from policy.training.store_keys import is_plain

COMPLETE_MARKER = ".complete"
MAX_FILES = 10_000
MAX_DEPTH = 32
MAX_PATH_BYTES = 400
MAX_CHECKPOINTS = 1000
MAX_FILES_IN_ALL = 20_000
"""The bound for one job. Control takes a report of its checkpoints in one message."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CHUNK_BYTES = 1024 * 1024


class UnusableCheckpointError(Exception):
    """A checkpoint that cannot be stored as it is. The message says why."""


class ChangedError(Exception):
    """A file is not what it was when the checkpoint was complete."""


@dataclass(frozen=True, slots=True)
class FileState:
    """A file, and what changes if its content does. `path`: relative to the checkpoint."""

    path: str
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    """The time of the last change that the kernel saw. A job cannot set it."""


@dataclass(frozen=True, slots=True)
class CheckpointSnapshot:
    """One checkpoint as it was on disk at one moment. `files`: by path."""

    name: str
    files: tuple[FileState, ...]

    @property
    def version(self) -> str:
        """The same for the same content, also after the trainer's restart."""
        states = ((file.path, file.size_bytes, file.mtime_ns, file.ctime_ns) for file in self.files)
        return hashlib.sha256(repr(tuple(states)).encode()).hexdigest()[:20]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def changed_ns(self) -> int:
        """Epoch nanoseconds of the last change."""
        return max(file.ctime_ns for file in self.files)

    @property
    def is_marked(self) -> bool:
        """Return whether the job says that it is complete, and has changed nothing since it said so."""
        return any(file.path == COMPLETE_MARKER and file.ctime_ns >= self.changed_ns for file in self.files)


@contextlib.contextmanager
def opened_directory(path: Path) -> Iterator[int]:
    """A descriptor of the directory. Follows symbolic links only of root's and the trainer's own. OSError."""
    descriptor = os.open("/", _DIRECTORY)
    try:
        for part in path.absolute().parts[1:]:
            inner = _enter(descriptor, part)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened_below(directory: int, path: str, flags: int) -> Iterator[int]:
    """A descriptor of a file below an open directory. OSError if a part is a symbolic link, or missing."""
    *parents, name = path.split("/")
    with contextlib.ExitStack() as open_parts:
        for parent in parents:
            directory = os.open(parent, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            open_parts.callback(os.close, directory)
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=directory)
        open_parts.callback(os.close, descriptor)
        yield descriptor


def checkpoint_snapshots(directory: Path) -> Mapping[str, CheckpointSnapshot | UnusableCheckpointError]:
    """Return the content of a checkpoint directory now, by name; empty if there is no such directory. OSError."""
    by_name = dict[str, CheckpointSnapshot | UnusableCheckpointError]()
    with contextlib.ExitStack() as opened:
        try:
            root = opened.enter_context(opened_directory(directory))
        except (FileNotFoundError, NotADirectoryError):
            return by_name
        count = 0
        for name in sorted(os.listdir(root)):
            if stat.S_ISDIR(_mode(root, name)):
                try:
                    files = files_of(root, name)
                    count += len(files)
                    if files:
                        _check_count(len(by_name) + 1, count)
                        by_name[name] = CheckpointSnapshot(name, files)
                except UnusableCheckpointError as error:
                    by_name[name] = error
    return by_name


def _check_count(checkpoints: int, files: int) -> None:
    if checkpoints > MAX_CHECKPOINTS or files > MAX_FILES_IN_ALL:
        raise UnusableCheckpointError(
            f"the job has more than {MAX_CHECKPOINTS} checkpoints, or {MAX_FILES_IN_ALL} files in them"
        )


def files_of(root: int, name: str) -> tuple[FileState, ...]:
    """The files of one checkpoint; none if it is gone. UnusableCheckpointError."""
    if not is_plain(name):
        raise UnusableCheckpointError("its name has control characters, or bytes that are not UTF-8")
    files: list[FileState] = []
    _collect(root, name, "", files)
    return tuple(sorted(files, key=lambda file: file.path))


def pieces_of(root: int, name: str, file: FileState) -> Iterator[bytes]:
    """The content of one file. ChangedError if it is not that of `file`; OSError."""
    with opened_below(root, f"{name}/{file.path}", os.O_RDONLY) as descriptor:
        rest = file.size_bytes
        while rest and (piece := os.read(descriptor, min(_CHUNK_BYTES, rest))):
            rest -= len(piece)
            yield piece
        if rest or _file_state(file.path, os.fstat(descriptor)) != file:
            raise ChangedError(file.path)


def sha256_of(pieces: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _enter(directory: int, part: str) -> int:
    """A component of a path. A job that runs as another user than the trainer must not lead it elsewhere."""
    state = os.stat(part, dir_fd=directory, follow_symlinks=False)
    is_trusted_link = stat.S_ISLNK(state.st_mode) and state.st_uid in (0, os.geteuid())
    return os.open(part, _DIRECTORY | (0 if is_trusted_link else os.O_NOFOLLOW), dir_fd=directory)


def _mode(directory: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except OSError:  # gone meanwhile
        return 0


def _collect(parent: int, name: str, prefix: str, files: list[FileState]) -> None:
    """Add the files of a directory and those below it. What vanishes meanwhile is not there."""
    if prefix.count("/") >= MAX_DEPTH:
        raise UnusableCheckpointError(f"it has more than {MAX_DEPTH} levels of directories")
    with contextlib.ExitStack() as opened:
        try:
            directory = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            opened.callback(os.close, directory)
            entries = opened.enter_context(os.scandir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise UnusableCheckpointError(f"it cannot be read: {error.strerror}") from None
        for entry in entries:
            _collect_entry(directory, entry, prefix, files)


def _collect_entry(directory: int, entry: os.DirEntry[str], prefix: str, files: list[FileState]) -> None:
    with contextlib.suppress(FileNotFoundError):
        state = entry.stat(follow_symlinks=False)
        if not (stat.S_ISDIR(state.st_mode) or stat.S_ISREG(state.st_mode)):
            return
        if not is_plain(entry.name) or len((prefix + entry.name).encode()) > MAX_PATH_BYTES:
            raise UnusableCheckpointError(f"a name in it cannot be stored: {entry.name!r}")
        if stat.S_ISDIR(state.st_mode):
            _collect(directory, entry.name, f"{prefix}{entry.name}/", files)
        else:
            files.append(_file_state(prefix + entry.name, state))
        if len(files) > MAX_FILES:
            raise UnusableCheckpointError(f"it has more than {MAX_FILES} files")


def _file_state(path: str, state: os.stat_result) -> FileState:
    is_file = stat.S_ISREG(state.st_mode)
    return FileState(path, state.st_size if is_file else -1, state.st_mtime_ns, state.st_ctime_ns)
