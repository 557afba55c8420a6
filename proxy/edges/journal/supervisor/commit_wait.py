"""A wait until control has committed what journals held when it began.

See docs/reference/money.md#how-spend-is-counted.
"""

import asyncio
from collections.abc import Collection, Mapping

from proxy.edges.journal.supervisor.journal_reader import JournalReader


class CommitWait:
    """See `Shipper.committed`. `over` is set when it ends."""

    def __init__(self, places: Mapping[str, tuple[int, int]]) -> None:
        self.over = asyncio.Event()
        self._places = places
        self._names: set[str] | None = None
        """The journals that are waited for. Known with the first look."""

    def look(self, readers: Mapping[str, JournalReader], live: Collection[str], whole: Collection[str]) -> None:
        """End the wait if all is committed. Call this when everything that was read is committed.

        `readers`: of all journals on disk. `whole`: the dead workers whose journals are read to the end.
        """
        if self._names is None:
            self._names = {name for name in readers if name in self._places or name not in live}
        self._names = {name for name in self._names if name in readers and name not in whole}
        self._names -= {
            name for name in self._names if (place := self._places.get(name)) and readers[name].place >= place
        }
        if not self._names:
            self.over.set()
