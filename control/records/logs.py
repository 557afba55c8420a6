"""Lines of logs, of deployments and of training jobs. Values only."""

from dataclasses import dataclass, replace

NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log."""

    timestamp_ns: int
    level: str
    message: str
    replica: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class LogFilter:
    """The selection of lines of a log: those from the first to the last of these milliseconds that match.

    None is no filter. `includes`: texts that the message contains, all of them. `excludes`: texts of which it contains
    none. `limit`: see `log_rows.read_page`.
    """

    start_ms: int | None = None
    end_ms: int | None = None
    levels: tuple[str, ...] | None = None
    request_id: str | None = None
    replica: str | None = None
    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    newest_first: bool = True
    limit: int = 500

    def behind(self, ms: int) -> "LogFilter":
        """Select the lines that come after a millisecond in the direction of reading."""
        return replace(self, end_ms=ms - 1) if self.newest_first else replace(self, start_ms=ms + 1)
