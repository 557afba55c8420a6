"""The start times of cumulative streams. A counter that begins again gets a new one, so none ever goes back.

Sums of a registry begin at 0 when their series appears: after the registry was last read. A series that was removed and
comes back is a new stream for the same reason.
"""

from collections.abc import Hashable


class StreamStarts:
    """Times are Unix nanoseconds. `began_ns`: when the process's counting began."""

    def __init__(self, began_ns: int) -> None:
        self._last_ns = began_ns
        self._now_ns = began_ns
        self._before: dict[Hashable, tuple[int, float]] = {}
        self._streams: dict[Hashable, tuple[int, float]] = {}
        """The start and the latest value of each stream that this round has read."""

    def begin(self, now_ns: int) -> int:
        """Begin to read the registry. Returns the time of its points, which never goes back as a clock may."""
        self._last_ns = self._now_ns
        self._now_ns = max(now_ns, self._last_ns + 1)
        self._before = self._streams
        self._streams = {}
        return self._now_ns

    def start_of(self, stream: Hashable, value: float) -> int:
        """The start of a stream that has this value now: a sum, or a histogram's count."""
        start, latest = self._before.get(stream, (self._last_ns, 0.0))
        if value < latest:
            start = self._last_ns
        self._streams[stream] = (start, value)
        return start
