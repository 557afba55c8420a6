"""The journal in memory: a fake of `proxy/edges/journal/writer.py`. `entries`: the records, in order."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field

from policy.billing import Tokens
from proxy.accounting.recovery import CloseCall, OpenCall
from proxy.exchange import JournalUnavailableError, OpenRecord


@dataclass
class FakeJournal:
    """`full`: new calls are refused."""

    opened: list[OpenCall] = field(default_factory=list)
    progressed: list[tuple[str, Tokens]] = field(default_factory=list)
    closed: list[CloseCall] = field(default_factory=list)
    entries: list[str] = field(default_factory=list)
    full: bool = False

    def open(self, call: OpenCall) -> OpenRecord | None:
        if self.full:
            raise JournalUnavailableError
        self.opened.append(call)
        self.entries.append("open")
        return None

    def answered(self, event_key: str, tokens: Tokens, now_ms: int) -> None:
        self.progressed.append((event_key, tokens))
        self.entries.append("answered")

    def progress(self, event_key: str, tokens: Tokens, now_ms: int) -> None:
        self.progressed.append((event_key, tokens))
        self.entries.append("progress")

    def close(self, call: CloseCall) -> Awaitable[None] | None:
        self.closed.append(call)
        self.entries.append("close")
        return None


def written(record: OpenRecord) -> asyncio.Future[None]:
    """Done when the journal has the record, or with why it was refused."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def go_on(refused: Exception | None) -> None:
        if future.done():  # the call was cancelled
            return
        if refused is None:
            future.set_result(None)
        else:
            future.set_exception(refused)

    record.then(go_on)
    return future
