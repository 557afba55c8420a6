"""A worker's cache of policy. It keeps each value until one of the rows behind it changes.

Bounded in bytes. The names of changed rows are remembered, and each entry is compared with them when it is next used:
a change costs nothing for entries that it does not concern, however many there are.
"""

from dataclasses import dataclass
from typing import Any

from policy.snapshot import RowKind
from proxy.edges.policy.replica_rows import Name
from proxy.edges.recently_used import RecentlyUsed

_GROUP = RowKind.GROUP.value
MAX_NAMES = 10_000
"""The most names of changed rows that are remembered. With more, everything is dropped."""


@dataclass(slots=True, eq=False)
class Entry:
    """A value with the names of its rows. `checked`: the generation in which it was last seen to be current.

    `rows`: kind and id of each, one after the other. `groups`: the ids of further rows, of groups. Tuples of strings
    cost the garbage collector nothing. `slug`: not "" if the value was also made of what these groups have for it.
    """

    value: Any
    weight: int
    rows: tuple[str, ...]
    checked: int
    groups: tuple[str, ...] = ()
    slug: str = ""


class PolicyCache:
    """The values of a worker. Never more than `weight` bytes in all."""

    def __init__(self, weight: int) -> None:
        self.entries = RecentlyUsed[Any, Entry](weight, lambda _key, entry: entry.weight)
        """Readable from outside: a young entry whose `checked` is the replica's generation is current."""
        self.generation = -1
        """The replica's generation up to which changes are known."""
        self._changed: dict[Name, int] = {}
        """The generation in which each row was last changed, by name."""
        self._complete_from = 0
        """The generation since which all changes are in `_changed`."""

    def get(self, key: object) -> Any:
        """Return the value, if it is here and current."""
        entry = self.entries.young.get(key)
        if entry is None or entry.checked != self.generation:
            entry = self.entry(key)
        return None if entry is None else entry.value

    def entry(self, key: object) -> Entry | None:
        """Return the value's entry, if it is here and current."""
        entry = self.entries.get(key)
        if entry is None:
            return None
        if entry.checked != self.generation:
            if self._has_changed(entry):
                self.entries.drop(key)
                return None
            entry.checked = self.generation
        return entry

    def _has_changed(self, entry: Entry) -> bool:
        changed = self._changed
        checked = entry.checked
        if any(changed.get(name, 0) > checked for name in zip(entry.rows[::2], entry.rows[1::2], strict=True)):
            return True
        if any(changed.get((_GROUP, id), 0) > checked for id in entry.groups):
            return True
        return bool(entry.slug) and any(changed.get((id, entry.slug), 0) > checked for id in entry.groups)

    def are_unchanged(self, groups: tuple[str, ...], since: int) -> bool:
        """Return whether the rows of these groups are known to be the same as in generation `since`."""
        if since == self.generation:  # nearly always
            return True
        changed = self._changed
        return since >= self._complete_from and not any(changed.get((_GROUP, id), 0) > since for id in groups)

    def put(self, key: object, entry: Entry) -> None:
        """Keep an entry, unless changes since `checked` are unknown."""
        if entry.checked >= self._complete_from:
            self.entries.put(key, entry)

    def advance(self, generation: int, changed: list[Name] | None) -> None:
        """Follow the replica to `generation`. `changed`: the names of all rows that changed; None: they are unknown."""
        self.generation = generation
        if changed is None or len(self._changed) + len(changed) > MAX_NAMES:
            self._complete_from = generation
            self._changed.clear()
            self.entries.clear()
        else:
            self._changed.update(dict.fromkeys(changed, generation))
