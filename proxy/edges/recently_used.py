"""A bounded cache without bookkeeping for what is in use."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class RecentlyUsed(Generic[Key, Value]):
    """A cache in two halves, young and old. A full young half becomes the old one; entries in use move back.

    `most`: the weight of all entries together, at most. `weigh`: the weight of one; without it, each weighs 1.
    """

    def __init__(self, most: int, weigh: Callable[[Key, Value], int] = lambda _key, _value: 1) -> None:
        self._half = most // 2
        self._weigh = weigh
        self.young: dict[Key, Value] = {}
        """Readable from outside: what is here needs no `get`."""
        self._old: dict[Key, Value] = {}
        self._young_weight = 0

    def get(self, key: Key) -> Value | None:
        """The value, which is in use from now on; None if it is not here."""
        value = self.young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> None:
        """Keep a value; it is not None."""
        weight = self._weigh(key, value)
        if self._young_weight + weight > self._half:
            self._old = self.young
            self.young = {}
            self._young_weight = 0
        self._young_weight += weight
        self.young[key] = value

    def drop(self, key: Key) -> None:
        """Drop the value, if it is here."""
        self.young.pop(key, None)
        self._old.pop(key, None)

    def values(self) -> Iterator[Value]:
        """All values. One that has moved back comes twice."""
        yield from self.young.values()
        yield from self._old.values()

    def clear(self) -> None:
        """Drop everything."""
        self.young = {}
        self._old = {}
        self._young_weight = 0
