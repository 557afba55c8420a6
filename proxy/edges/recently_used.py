"""A bounded cache without bookkeeping for what is in use."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class RecentlyUsed(Generic[Key, Value]):
    """A cache in two halves, young and old. A full young half becomes the old one; entries in use move back.

    `most`: the weight of all entries together, at most. `weigh`: the weight of one; without it, each weighs 1.
    """

    def __init__(self, most: int, weigh: Callable[[Key, Value], int] | None = None) -> None:
        self._half = most // 2
        self._weigh = weigh
        self.young: dict[Key, Value] = {}
        """Readable from outside: what is here needs no `get`, and what is in neither half is not kept."""
        self.old: dict[Key, Value] = {}
        self._young_weight = 0

    def get(self, key: Key) -> Value | None:
        """The value, which is in use from now on; None if it is not here."""
        value = self.young.get(key)
        if value is None and (value := self.old.get(key)) is not None:
            self.put(key, value)
        return value

    def put(self, key: Key, value: Value, weight: int | None = None) -> None:
        """Keep a value; it is not None. `weight`: what `weigh` says of it, if that is known."""
        if weight is None:
            weight = 1 if self._weigh is None else self._weigh(key, value)
        young_weight = self._young_weight + weight
        if young_weight > self._half:
            self.old = self.young
            self.young = {}
            young_weight = weight
        self._young_weight = young_weight
        self.young[key] = value

    def drop(self, key: Key) -> None:
        """Drop the value, if it is here."""
        self.young.pop(key, None)
        self.old.pop(key, None)

    def values(self) -> Iterator[Value]:
        """All values. One that has moved back comes twice."""
        yield from self.young.values()
        yield from self.old.values()

    def clear(self) -> None:
        """Drop everything."""
        self.young = {}
        self.old = {}
        self._young_weight = 0
