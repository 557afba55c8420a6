"""Bounds on the console's calls that are under way: of a session, of a workspace, and in this process.

See docs/reference/console.md#calls.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from control.errors import TooManyCallsError
from runtime.shares.places import Places

MOST_PER_SESSION = 8
MOST = 96
_CALLS = "calls of the console"


class CallPlaces:
    """Places for calls in this process. Each session has a few, each workspace its share."""

    def __init__(self) -> None:
        self._places = Places(MOST, _CALLS)
        self._of_sessions: Counter[str] = Counter()
        """The calls under way of each session that has any."""

    @contextmanager
    def taken(self, session: str, workspace_id: str) -> Iterator[None]:
        """Hold a place for one call. Raises `TooManyCallsError` or `NoPlaceError`."""
        if self._of_sessions[session] >= MOST_PER_SESSION:
            raise TooManyCallsError(_CALLS)
        with self._places.taken(workspace_id):
            self._of_sessions[session] += 1
            try:
                yield
            finally:
                self._of_sessions[session] -= 1
                if not self._of_sessions[session]:
                    del self._of_sessions[session]
