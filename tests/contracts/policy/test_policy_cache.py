"""The cache of looked-up policy: bounded in bytes, and current by the names of the rows that changed."""

import pytest

from proxy.edges.policy.policy_cache import MAX_NAMES, Entry, PolicyCache

ROW = ("key", "d")


def kept(cache: PolicyCache, key: str, weight: int = 10, checked: int = 1) -> None:
    cache.put(key, Entry(key, weight, (*ROW, "group", key), checked))


def following() -> PolicyCache:
    cache = PolicyCache(1000)
    cache.advance(1, None)
    return cache


def test_cache_is_bounded_and_keeps_entries_in_use() -> None:
    cache = following()
    kept(cache, "hot")
    for number in range(1000):
        kept(cache, str(number))
        assert cache.get("hot") == "hot"
    assert len(list(cache.entries.values())) <= 100
    assert cache.get("0") is None


def test_large_entries_take_the_place_of_many_small_ones() -> None:
    cache = following()
    for number in range(100):
        kept(cache, str(number))
    kept(cache, "large", 450)
    kept(cache, "larger", 460)
    assert [entry.value for entry in cache.entries.values()] == ["larger", "large"]


def test_entry_is_dropped_by_a_change_of_any_of_its_rows_and_by_no_other() -> None:
    cache = following()
    for key in ("a", "b"):
        kept(cache, key)
    cache.advance(2, [("group", "a"), ("group", "c")])
    assert (cache.get("a"), cache.get("b")) == (None, "b")
    cache.advance(3, [("secret", "s")])
    kept(cache, "a", checked=3)
    assert (cache.get("a"), cache.get("b")) == ("a", "b")
    cache.advance(4, [ROW])
    assert (cache.get("a"), cache.get("b")) == (None, None)


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        (("group", "leaf"), False),
        (("group", "root"), False),
        (("root", "acme/a"), False),
        (("root", "acme/b"), True),
        (("group", "other"), True),
        (("endpoint", "root"), True),
    ],
)
def test_entry_is_dropped_by_a_change_of_its_groups_and_of_what_they_have_for_its_slug(
    name: tuple[str, str], is_kept: bool
) -> None:
    cache = following()
    cache.put("a", Entry("a", 10, ("endpoint", "acme/a"), 1, ("leaf", "root"), "acme/a"))
    cache.advance(2, [name])
    assert (cache.get("a") is not None) is is_kept


def test_entry_that_was_made_before_a_change_is_never_current() -> None:
    cache = following()
    cache.advance(2, [ROW])
    kept(cache, "a", checked=1)
    assert cache.get("a") is None
    cache.advance(3, None)
    kept(cache, "a", checked=2)
    assert cache.get("a") is None


def test_unknown_changes_drop_everything() -> None:
    cache = following()
    kept(cache, "a")
    cache.advance(2, None)
    assert cache.get("a") is None


def test_more_changes_than_are_remembered_drop_everything() -> None:
    cache = following()
    kept(cache, "a")
    cache.advance(2, [("key", str(number)) for number in range(MAX_NAMES)])
    assert cache.get("a") == "a"
    cache.advance(3, [("key", "another")])
    assert cache.get("a") is None
