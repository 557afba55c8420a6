"""The hashes that count what trees spend, as their job needs them: `SpendHashes` of the Redis edge."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from control.records.spend import SpendTree, TreeBuild, TreeCount, TreeReserves


class TreeHashes(Protocol):
    """Counts, builds and sweeps them. Raises `UsageUnavailableError` while Redis does not answer."""

    # counting

    async def epochs(self, trees: Sequence[SpendTree]) -> Mapping[str, str]:
        """The text by which each tree's hash tells that what it has counts, by the tree's root."""
        ...

    async def count(self, counts: Sequence[TreeCount], epochs: Mapping[str, str]) -> set[str]:
        """Count these events, each once, however often this is done. Returns the roots of trees that must be built."""
        ...

    async def build(self, tree: SpendTree, epoch: str, build: TreeBuild) -> bool:
        """Set what the groups have spent. False if as much was counted meanwhile."""
        ...

    async def latest_counted_ms(self, trees: Sequence[SpendTree]) -> int:
        """The latest time through which events of one of these trees are counted; 0 if there are none."""
        ...

    async def forget(self, trees: Sequence[SpendTree]) -> None:
        """Have nothing count in these trees until they are built."""
        ...

    # the sweep

    async def reserves(self, tree: SpendTree) -> TreeReserves:
        """Read all that the hash holds besides what is spent, at one moment."""
        ...

    async def repair(self, tree: SpendTree, stamp: bytes, drifts: Mapping[str, int]) -> bool:
        """Add these to what groups have reserved (10^-12). False if another repair was made since that stamp."""
        ...

    async def release(self, tree: SpendTree, event_keys: Sequence[str]) -> int:
        """Delete the reservations of these events. Returns how many there were."""
        ...

    async def delete_spent(self, tree: SpendTree, fields: Sequence[str]) -> None:
        """Delete what was spent in windows that are past."""
        ...
