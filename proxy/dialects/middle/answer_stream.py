"""An answer on its way to its caller, event by event. A failure is its last word, whatever the dialects.

Pure. Readers say what they read, and writers write what they are given; only this knows how far the answer has come.
"""

from policy.billing import Tokens
from proxy.dialects.middle.answer import AnswerEvent, Failed, Stopped
from proxy.dialects.middle.dialect import StreamWriter
from proxy.dialects.middle.stops import failure_of

_ENDS = (Stopped, Failed)


class AnswerStream:
    """Writes one answer: open, then stopped, and failed at any time. Nothing is written after a failure."""

    __slots__ = ("_is_told", "_stopped", "_writer", "failed", "unknown_stop")

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        self._stopped = False
        self._is_told = False
        """True if `finish` told why the answer stopped."""
        self.failed = False
        self.unknown_stop = ""
        """The vendor's word for why the answer stopped, if it is unknown here."""

    def write(self, events: list[AnswerEvent]) -> bytes:
        """The caller's bytes for these events; none once the answer has failed."""
        if self.failed:
            return b""
        for place, event in enumerate(events):
            if isinstance(event, _ENDS) and (failure := self._failure(event)) is not None:
                self.failed = True
                return self._writer.write([*events[:place], failure])
        return self._writer.write(events)

    def finish(self) -> bytes:
        """Tell why the answer stopped, if it did and this is not told yet: the usage is late."""
        if self._is_told or not self._stopped or self.failed:
            return b""
        self._is_told = True
        return self._writer.finish()

    def end(self, tokens: Tokens | None) -> bytes:
        """The bytes that end the stream: none of an answer that was cut, or that failed and said so."""
        return self._writer.closing(tokens) if self._stopped and not self.failed else b""

    def _failure(self, event: Stopped | Failed) -> Failed | None:
        """The failure that an end tells: of a stop, that the server gave the answer up."""
        if isinstance(event, Failed):
            return event
        failure = failure_of(event.stop)
        if failure is None:
            self._stopped = True
            self._is_told = False
            self.unknown_stop = event.stop.word
        return failure
