"""Keys in the checkpoint store: one per file, without characters that a store takes in its own way."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.training.store_keys import is_plain, is_plain_path, location, manifest_key, restored_key, store_key

names = st.text(min_size=1, max_size=90).filter(is_plain)
paths = st.lists(names, min_size=1, max_size=5).map("/".join)


@given(paths, paths)
def test_different_paths_have_different_keys(one: str, other: str) -> None:
    assert (store_key("job/a/v", one) == store_key("job/a/v", other)) == (one == other)


@given(names, paths)
def test_keys_have_only_characters_that_every_store_takes_literally(name: str, path: str) -> None:
    key = store_key(location("job", name, "v"), path)
    assert re.fullmatch(r"job/[\w.%=+@,~-]+/v(/[\w.%=+@,~-]+)+", key, re.ASCII)
    assert all(len(part) <= 255 and part not in (".", "..") for part in key.split("/"))
    assert len(key) <= 1024


@given(names, paths)
def test_no_file_has_the_key_of_a_manifest_or_note(name: str, path: str) -> None:
    where = location("job", name, "v")
    assert store_key(where, path) != manifest_key(where)
    assert not where.startswith(restored_key("job"))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\nb", "\x00", "\udc80", "é" * 128])
def test_names_that_are_not_plain_have_no_key(name: str) -> None:
    with pytest.raises(ValueError, match="plain"):
        location("job", name, "v")


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", "./a"])
def test_paths_that_leave_their_directory_have_no_key(path: str) -> None:
    assert not is_plain_path(path)
    with pytest.raises(ValueError, match="relative"):
        store_key("job/a/v", path)


def test_long_names_are_hashed() -> None:
    assert re.fullmatch(r"job/%-[0-9a-f]{64}/v", location("job", "é" * 100, "v"))
