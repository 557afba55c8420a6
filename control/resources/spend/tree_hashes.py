"""The hashes that count what trees spend, as their job needs them: `SpendHashes` of the Redis edge."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from control.records.spend import (
    SpendReading,
    SpendTree,
    SpentEvent,
    TreeBuild,
    TreeCount,
    TreeDraws,
    TreeReserves,
    TreesToMend,
)
from policy.spend.effective import SpendBound


class TreeHashes(Protocol):
    """Counts, builds and sweeps them. Raises `UsageUnavailableError` while Redis does not answer."""

    # counting

    async def epochs(self, trees: Sequence[SpendTree]) -> Mapping[str, str]:
        """The text by which each tree's hash tells that what it has counts, by the tree's root."""
        ...

    async def server_epochs(self) -> Mapping[str, str]:
        """The epoch of each server that holds data, by its name."""
        ...

    async def count(self, counts: Sequence[TreeCount], epochs: Mapping[str, str]) -> TreesToMend:
        """Count these events, each once, however often this is done."""
        ...

    async def build(self, tree: SpendTree, epoch: str, build: TreeBuild) -> bool:
        """Set what the groups have spent. False if as much was counted meanwhile."""
        ...

    async def latest_counted_ms(self, trees: Sequence[SpendTree]) -> int:
        """The latest time through which events of one of these trees are counted; 0 if there are none."""
        ...

    async def forget(self, trees: Sequence[SpendTree]) -> None:
        """Have nothing count in these trees until they are built, after the database was set back."""
        ...

    # HARD limits and balances

    async def begin_rebuilds(self, trees: Sequence[SpendTree], epochs: Mapping[str, str]) -> dict[str, str]:
        """Have these trees wait for reservations that may be missing. Returns the states that name these waits, which
        may have begun before, by root; none for trees that do not count by their epoch, or miss nothing."""
        ...

    async def complete(self, tree: SpendTree, epoch: str, state: str, events: Sequence[SpentEvent]) -> bool:
        """Reserve what these committed events cost, or draw, where they are not counted and have no reservation. Then
        all reservations of the tree are there. False if it does not wait by this epoch and state any more."""
        ...

    async def drop_complete(self, root_ids: Sequence[str]) -> None:
        """Have reservations of these trees count as missing."""
        ...

    async def drawn_of(self, tree: SpendTree, group_ids: Sequence[str]) -> TreeDraws:
        """Read what is drawn from the balances of these groups. Raises `SpendNotCountedError`."""
        ...

    async def count_anew(self, tree: SpendTree) -> None:
        """Have nothing count in this tree until it is built. Its reservations stay, and are all there as before."""
        ...

    async def spend_of(self, bounds: Sequence[SpendBound], key: str, at_ms: int | None = None) -> SpendReading:
        """A `SpendSource`."""
        ...

    # the sweep

    async def reserves(self, tree: SpendTree) -> TreeReserves:
        """Read all that the hash holds besides what is spent, at one moment if there is not too much."""
        ...

    async def repair(self, tree: SpendTree, stamp: bytes, drifts: Mapping[str, int]) -> bool:
        """Add these to what groups have reserved (10^-12). False if another repair was made since that stamp."""
        ...

    async def release(self, tree: SpendTree, event_keys: Sequence[str], counted_ms: int) -> int:
        """Delete the reservations of these events, if events are counted through this time; returns how many."""
        ...

    async def delete_spent(self, tree: SpendTree, fields: Sequence[str]) -> None:
        """Delete what was spent in windows that are past."""
        ...
