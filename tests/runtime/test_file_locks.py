"""Locks that one process holds alone."""

import os
from pathlib import Path

from runtime.file_locks import is_locked, try_lock


def test_a_second_holder_is_refused_until_the_first_closes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = os.open(path, os.O_RDWR | os.O_CREAT)
    second = os.open(path, os.O_RDWR)
    assert try_lock(first)
    assert is_locked(path)
    assert not try_lock(second)
    os.close(first)
    assert not is_locked(path)
    assert try_lock(second)
    os.close(second)


def test_a_missing_file_is_not_locked(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "lock")
