"""One call's share of its worker's capacity, as the stages see it. `worker_capacity.py` implements it.

Nothing here awaits, so everything is released even if the call's task is cancelled.
"""

from typing import Protocol


class Load(Protocol):
    """One call's share of the capacity. A method that takes something takes all of it or raises `ShedError` (529)."""

    held_bytes: int
    """Memory that the call holds now."""

    def claim(self, workspace: str, turn: str) -> None:
        """Count the call for this workspace and for this group or workspace key from now on."""
        ...

    def expect(self, size_bytes: int) -> None:
        """Raise if this much could not be held now. Takes nothing."""
        ...

    def hold(self, size_bytes: int) -> None:
        """Hold more memory for the call."""
        ...

    def drop(self) -> None:
        """Release the call's memory."""
        ...

    def park(self) -> None:
        """Count the call as parked: it waits until a replica is ready."""
        ...

    def unpark(self) -> None:
        """The call is no longer parked."""
        ...

    def leave(self) -> None:
        """Release everything that the call has. Called once."""
        ...
