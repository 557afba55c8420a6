"""Replacing a file that only its owner may read."""

from pathlib import Path

import pytest

from runtime.private_files import replace_file


def test_file_is_replaced_as_a_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old, and longer than the new")
    path.chmod(0o644)
    replace_file(path, "new\n")
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_failed_replacement_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        replace_file(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
