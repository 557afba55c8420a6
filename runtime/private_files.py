"""Files that only their owner may read: the data directory's and the journals'.

Directories that an earlier version made under another umask are closed to group and others at start.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

UMASK = 0o077
"""Of every process of ours, set before it makes a file: what it makes is its owner's alone."""
_OTHERS = 0o077


class NotOursError(Exception):
    """A directory for keys and billing events belongs to another user, who could read and change all of it."""

    def __init__(self, path: Path, owner: int) -> None:
        super().__init__(
            f"{path} belongs to user {owner}, and this process runs as user {os.geteuid()}. Run it as that user, give"
            f" the directory to this one (chown), or name a directory inside it that does not exist yet."
        )


def tighten_directory(directory: Path) -> list[str]:
    """Close a directory, and all in it, to group and others; what had been open. NotOursError when it is another's."""
    status = directory.stat()
    if status.st_uid != os.geteuid():
        raise NotOursError(directory, status.st_uid)
    opened = [str(directory)] if _close(str(directory), status) else []
    return opened + [path for path, found in _within(str(directory)) if _close(path, found)]


def tighten_files(*paths: Path) -> list[str]:
    """The same for files that stand in a directory of somebody else's; those that are not there are passed over."""
    return [str(path) for path in paths if path.is_file() and _close(str(path), path.stat())]


def told(opened: list[str]) -> str:
    """A sentence for the log."""
    more = f" and {len(opened) - 1} more" if len(opened) > 1 else ""
    return f"Others could read {opened[0]}{more}; closed to all but the owner (modes 0700 and 0600)."


def _close(path: str, status: os.stat_result) -> bool:
    """Whether it had been open. Links, sockets and what is another user's are left alone."""
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    if not is_plain or status.st_uid != os.geteuid() or not status.st_mode & _OTHERS:
        return False
    os.chmod(path, stat.S_IMODE(status.st_mode) & ~_OTHERS)
    return True


def _within(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    """All below it; what goes away meanwhile, as a journal that was shipped does, is passed over."""
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            try:
                yield path, os.lstat(path)
            except FileNotFoundError:
                continue
