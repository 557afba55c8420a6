"""The times to start a replica again after one failed, and when to give up. Pure; the caller brings the time."""

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
STEADY_S = 30.0
"""A replica that served this long before it failed: the next failure is the first again."""
MAX_FAILED_STARTS = 5


class StartAttempts:
    """Counts failures in a row. Failed starts lead to giving up; failures of serving replicas only delay the next."""

    def __init__(self) -> None:
        self._failures = 0
        self._failed_starts = 0
        self.not_before = 0.0
        """The next replica starts no earlier than this."""

    @property
    def is_exhausted(self) -> bool:
        return self._failed_starts >= MAX_FAILED_STARTS

    @property
    def has_failed(self) -> bool:
        """Return whether the last start failed. Then one replica is tried at a time."""
        return self._failed_starts > 0

    def start_failed(self, now: float) -> None:
        self._failed_starts += 1
        self._delay(now)

    def start_succeeded(self) -> None:
        self._failed_starts = 0

    def serving_failed(self, now: float, served_s: float) -> None:
        """A replica that served calls crashed or hung."""
        if served_s >= STEADY_S:
            self._failures = 0
        self._delay(now)

    def reset(self) -> None:
        """Someone asked for another attempt."""
        self._failures = self._failed_starts = 0
        self.not_before = 0.0

    def _delay(self, now: float) -> None:
        self._failures += 1
        self.not_before = now + min(FIRST_DELAY_S * 2 ** (self._failures - 1), LONGEST_DELAY_S)
