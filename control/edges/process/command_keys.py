"""`commands.key.json` in the data directory: the keys by which commands on this machine use the management API.

One key per workspace, in a file that only its owner may read.

See docs/reference/command-line.md#over-the-management-api.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from control.edges.process.data_directory import DataDirectory, DataDirectoryError
from runtime.private_files import replace_file

_NAME = "commands.key.json"


class CommandKeys:
    """The kept keys of one data directory, by workspace id."""

    def __init__(self, directory: DataDirectory) -> None:
        self._path = directory.path / _NAME

    def of(self, workspace_id: str) -> str | None:
        key = self._read().get(workspace_id)
        return key if isinstance(key, str) else None

    def keep(self, workspace_id: str, key: str) -> None:
        """Replace the workspace's key. The caller holds `changing`."""
        replace_file(self._path, json.dumps(self._read() | {workspace_id: key}) + "\n")

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Exclude other commands, so that two of them do not make a key each."""
        fd = os.open(_lock_of(self._path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _read(self) -> dict[str, object]:
        try:
            keys = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise DataDirectoryError(
                f"{self._path} cannot be read ({error}). Remove it, and a new key is made"
            ) from None
        return keys if isinstance(keys, dict) else {}


def _lock_of(path: Path) -> Path:
    return path.with_suffix(".lock")
