"""Appends JSON lines to a file that only its owner can read."""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

_OTHERS = 0o077


class PrivateLines:
    """The file at `path`, created with mode 0600; one that others can read is refused. Without a path, keeps nothing.

    Opened on entry, so that nothing is done whose secrets could not be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._descriptor: int | None = None

    def __enter__(self) -> "PrivateLines":
        if self._path is None:
            return self
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise click.ClickException(f"cannot write {self._path}: {error.strerror}") from None
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & _OTHERS:
            os.close(descriptor)
            raise click.ClickException(f"others can read {self._path}; run `chmod 600 {self._path}`")
        self._descriptor = descriptor
        return self

    def __exit__(self, *_reason: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def append(self, line: Mapping[str, Any]) -> bool:
        """Write a line through to the disk. False: there is no file. Raises OSError."""
        if self._descriptor is None:
            return False
        rest = json.dumps(line).encode() + b"\n"
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        os.fsync(self._descriptor)
        return True
