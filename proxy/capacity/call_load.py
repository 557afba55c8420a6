"""What one call takes of a worker, as the stages see it: a place in flight, memory, a parked place.

`proxy/capacity/worker_capacity.py` keeps the books behind it. Nothing here waits, so that what is taken is given back
also when the call's task is cancelled.
"""

from typing import Protocol


class Load(Protocol):
    """Made when a call enters the worker. Each method that takes something raises `ShedError` (529) or takes it all."""

    held_bytes: int
    """Of memory, now."""

    def claim(self, workspace: str, key: str) -> None:
        """The caller is known: from here on the call counts for this workspace and this key."""
        ...

    def expect(self, size_bytes: int) -> None:
        """Refuse at once what could not be held as things are; nothing is taken."""
        ...

    def hold(self, size_bytes: int) -> None:
        """So many more bytes are in memory for this call."""
        ...

    def drop(self) -> None:
        """Nothing is in memory for it any more."""
        ...

    def park(self) -> None:
        """The call waits for a replica."""
        ...

    def unpark(self) -> None:
        """It waits no more."""
        ...

    def leave(self) -> None:
        """The call is over; what it still has goes with it. Called once."""
        ...
