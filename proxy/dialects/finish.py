"""Holds the finish of a streamed answer back until its usage is known: who has the whole answer pays for all of it.

Pure. A dialect says what each frame is (`Roles`); the rule stands here, for passed and for translated streams. A finish
frame and all behind it wait for the usage, the end, or `HELD_S`; they leave at once when output follows. An answer ends
with its last event, or without it once nothing else can follow: a wait after finish and usage or a failure.

See docs/reference/inference.md#streaming.
"""

import re
from enum import IntEnum
from typing import Any, Protocol

from proxy.accounting.metering import Reported
from proxy.dialects import sse

Json = dict[str, Any]

HELD_S = 2.0
"""Seconds for which a finish frame is held, and for which an answer may lack only its last event."""
WAITS_FOR_USAGE = 5
"""Multiple of `HELD_S` for which an answer with a finish and no usage may lack its last event.

The wait holds up a caller, but a late report is still a better bill than a count.
"""
MAX_HELD_BYTES = 1 << 20
TAIL_BYTES = 64 << 10
MAX_KNOWN_TYPES = 100
MAX_TYPE_BYTES = 100

_TYPE = re.compile(rb'(?:\A|[\r\n])data: ?\{\s*+"type"\s*+:\s*+"([^"\\]*+)"')
_DONE = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\]")
_NAMED_FINISH = re.compile(rb'"finish_reason"\s*+:\s*+(?!null|"")')
_ANYTHING = re.compile(rb"")
_STOP_TELLER = b"message_delta"
"""The type of events that are a finish only if they tell why the answer stopped."""


class Role(IntEnum):
    """The part that a frame plays in its answer."""

    OUTPUT = 0
    OTHER = 1
    """Neither output nor an end: a keep-alive, a chunk without a choice."""
    PART_END = 2
    """The end of a part of the output, which may be the last one."""
    FINISH = 3
    """The end of the output, with the reason why it stopped."""
    OUTPUT_AND_FINISH = 4
    """Both: some servers tell the finish beside the last text, and some beside every text."""
    LAST = 5
    """The dialect's own last event. Nothing that follows it belongs to the answer."""


class Roles(Protocol):
    """The roles of the frames of one dialect."""

    @property
    def mark(self) -> re.Pattern[bytes]:
        """A pattern in every frame that is no output. A cheap test: a frame without it is not examined."""
        ...

    def of_frame(self, frame: bytes) -> Role | None:
        """The role, if it can be told without parsing the frame's data."""
        ...

    def of_event(self, event: Json) -> Role:
        """The role of a frame with this data."""
        ...


class ChunkRoles:
    """The roles of chunks with choices: Chat Completions and Completions."""

    mark = _NAMED_FINISH

    def of_frame(self, frame: bytes) -> Role | None:
        return Role.LAST if _DONE.search(frame) else None

    def of_event(self, event: Json) -> Role:
        choices = event.get("choices")
        finishes = False
        says = bool(event.get("error"))
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                finishes = finishes or bool(choice.get("finish_reason"))
                says = says or bool(choice.get("text") or choice.get("message")) or _says_something(choice.get("delta"))
        if finishes:
            return Role.OUTPUT_AND_FINISH if says else Role.FINISH
        return Role.OUTPUT if says else Role.OTHER


class EventRoles:
    """The roles of events that name their type: Messages, Responses, and the streams of pictures and sound."""

    mark = _ANYTHING

    def __init__(self, *, output: str, part_end: str = "", last: frozenset[str] = frozenset()) -> None:
        """`output` and `part_end` are regular expressions of whole types."""
        self.last = last
        self._roles: dict[bytes, Role] = {}
        self.kinds = [(re.compile(kind.encode()), role) for kind, role in _kinds(output, part_end, last) if kind]

    def of_frame(self, frame: bytes) -> Role | None:
        match = _TYPE.search(frame)
        kind = match[1] if match is not None else sse.event_of(frame)
        if kind:
            return None if kind == _STOP_TELLER else self._of(kind)
        return Role.LAST if _DONE.search(frame) else None

    def of_event(self, event: Json) -> Role:
        delta = event.get("delta")
        kind = event.get("type")
        if isinstance(delta, dict) and delta.get("stop_reason"):
            return Role.FINISH
        return self._of(kind.encode(errors="replace")) if isinstance(kind, str) else Role.OTHER

    def _of(self, kind: bytes) -> Role:
        role = self._roles.get(kind)
        if role is None:
            role = next((role for pattern, role in self.kinds if pattern.fullmatch(kind)), Role.OTHER)
            if len(self._roles) < MAX_KNOWN_TYPES and len(kind) <= MAX_TYPE_BYTES:
                self._roles[kind] = role
        return role


def _kinds(output: str, part_end: str, last: frozenset[str]) -> tuple[tuple[str, Role], ...]:
    return (output, Role.OUTPUT), (part_end, Role.PART_END), ("|".join(map(re.escape, sorted(last))), Role.LAST)


class NothingHeld:
    """A reader of answers without frames: it holds no finish, and its answer ends with the upstream."""

    __slots__ = ()
    ended = False
    flows = True
    waits = 0

    def waited(self) -> bytes:
        return b""


class FinishingReader:
    """Holds the finish and the end of an answer, for all readers of streams. Subclasses read the frames."""

    __slots__ = (
        *("_end_frames", "_finish", "_is_alone", "_is_complete", "_waited", "_waits", "ended", "failed", "flows"),
        "waits",
    )

    def __init__(self, *, is_alone: bool = True) -> None:
        """`is_alone`: the answer has one choice, so that its finish is the finish of all."""
        self._end_frames = b""
        self._finish = Role.OUTPUT
        """The role of what came since the last output: nothing, the end of a part, or the finish."""
        self._is_alone = is_alone
        self._is_complete = False
        """Finish and usage came, or a failure: only the last event is missing."""
        self._waited = 0
        """Number of waits that are over since the finish that stands."""
        self._waits = 0
        self.waits = 0
        """The number of the wait in progress; 0 if there is none. After `HELD_S` of one wait call `waited`."""
        self.ended = False
        """The answer has ended, whether or not its upstream ends. What is held leaves with `end`."""
        self.failed = False
        self.flows = True
        """True if the last read brought nothing but output. Subclasses call `_note` after reads that may have more."""

    def _note(self) -> None:
        self.flows = not (self.waits or self.ended or self.failed)

    def waited(self) -> bytes:
        """Let what was held for `HELD_S` leave. An answer that lacks only its last event ends."""
        frames = self._let_go()
        self._waited += 1
        stands_alone = self._is_alone and self._finish is Role.FINISH
        if self._is_complete or (stands_alone and self._waited == WAITS_FOR_USAGE):
            self.ended = True
            self._end_frames = b"" if self.failed else self._missing_end()
        elif stands_alone:
            self._begin_wait()
        return frames

    def _missing_end(self) -> bytes:
        """The dialect's last event, for a stream that leaves it out."""
        raise NotImplementedError

    def _leave(self, frame: bytes, role: Role, reported: bool = False) -> bytes:
        """Return what leaves now that `frame`, as the caller gets it, came. `reported`: it tells the usage."""
        if role is Role.LAST:
            self.ended = True
            return self._hold(frame)
        if self.failed:
            return self._leave_failed(frame, role)
        before = b""
        if role in (Role.OUTPUT, Role.OUTPUT_AND_FINISH):
            before = self._let_go()
            self._finish = role
            self._is_complete = False
            self._waited = 0
        elif role is not Role.OTHER:
            self._finish = max(role, self._finish)
        if self._finish is Role.OUTPUT or (role is Role.OTHER and not self._end_frames and not reported):
            return before + frame
        if not reported:
            return before + self._wait_with(frame)
        before += self._let_go()
        # A finish beside text may be repeated beside the next one, however late that comes.
        self._is_complete = self._is_alone and self._finish >= Role.FINISH and role is not Role.OUTPUT_AND_FINISH
        if self._is_complete:
            self._begin_wait()
        return before + frame

    def _leave_failed(self, frame: bytes, role: Role) -> bytes:
        """Let all of an answer that failed leave at once. The failure ends it unless output follows."""
        frames = self._end_frames
        self._end_frames = b""
        if role is not Role.OTHER or not self._is_complete:
            self._is_complete = True
            self._begin_wait()
        return frames + frame

    def _let_go(self) -> bytes:
        """Return the held frames; they no longer wait."""
        self.waits = 0
        frames = self._end_frames
        self._end_frames = b""
        return frames

    def _wait_with(self, frame: bytes) -> bytes:
        if not self._end_frames:
            self._begin_wait()
        return self._hold(frame)

    def _begin_wait(self) -> None:
        self._waits += 1
        self.waits = self._waits

    def _hold(self, frame: bytes) -> bytes:
        """Hold a frame, or of too many bytes only the tail. Returns what passes."""
        frames = self._end_frames + frame
        keep = len(frames) if len(frames) <= MAX_HELD_BYTES + sse.MAX_FRAME_BYTES else TAIL_BYTES
        passing = frames[: len(frames) - keep]
        self._end_frames = frames[len(frames) - keep :]
        return passing


def tells_usage(event: Json, reported: Reported) -> bool:
    """Return whether an event, which `reported` has read, tells its answer's usage. Zero may be a figure to come."""
    tokens = reported.tokens if event.get("usage") is not None else None
    return tokens is not None and tokens.output > 0


def _says_something(delta: object) -> bool:
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")
