"""Small JSON files that a full disk cannot lose: their space is taken when they are made, and filled in place later."""

import json
import os
from typing import Any

_BYTES = 4096
"""One block of most file systems. A value must fit."""


def reserve(path: str) -> None:
    """Make the file, empty. Raises OSError if there is no room for it. An existing file stays as it is."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    try:
        os.write(file, b" " * _BYTES)
        os.fsync(file)
    finally:
        os.close(file)


def fill(path: str, value: dict[str, Any]) -> None:
    """Give the file its value. Readers see the value before or this one."""
    text = json.dumps(value).encode()
    if len(text) > _BYTES:
        raise ValueError(f"{len(text)} bytes do not fit into {path}")
    file = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(file, text.ljust(_BYTES), 0)
        os.fsync(file)
    finally:
        os.close(file)


def read(path: str) -> dict[str, Any] | None:
    """The value; None if it has none yet, is damaged, or there is no such file."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(_BYTES) or b"null")
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None
