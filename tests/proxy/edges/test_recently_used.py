"""The cache of what is in use: bounded by weight, and what is used stays."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.edges.recently_used import RecentlyUsed

WEIGHTS = st.dictionaries(st.integers(0, 50), st.integers(1, 10), min_size=1)


@given(st.lists(st.integers(0, 50)), WEIGHTS)
def test_weight_is_bounded_and_a_value_is_the_latest(keys: list[int], weights: dict[int, int]) -> None:
    cache = RecentlyUsed[int, tuple[int, int]](100, lambda key, _value: weights.get(key, 1))
    for number, key in enumerate(keys):
        cache.put(key, (key, number))
        assert cache.get(key) == (key, number)
        assert sum(weights.get(name, 1) for name, _ in cache.values()) <= 100


def test_what_is_used_stays_while_others_make_room() -> None:
    cache = RecentlyUsed[int, str](10)
    cache.put(-1, "used")
    for number in range(100):
        cache.put(number, "once")
        assert cache.get(-1) == "used"
    assert cache.get(0) is None
    assert len(list(cache.values())) <= 10


def test_dropped_value_is_gone_from_both_halves() -> None:
    cache = RecentlyUsed[int, str](4)
    for number in range(4):
        cache.put(number, "one")
    assert cache.get(1) == "one", "it is in both now"
    cache.drop(1)
    assert cache.get(1) is None
    cache.clear()
    assert list(cache.values()) == []
