"""Reads streams in the caller's own dialect: frames pass unchanged except for the model's name and added usage.

Pure. Ordinary deltas are not parsed. The last frame waits for `end`, so that the call is journaled before the last byte
leaves; finish frames wait for the usage (`finish.py`).
"""

import re
from collections.abc import Generator
from dataclasses import dataclass

import orjson

from proxy.dialects import failures, sse
from proxy.dialects.delta_pattern import CR, INSIDE_STRING, LF, MATCHES_NOTHING, QUOTE, learn_from
from proxy.dialects.finish import TAIL_BYTES, FinishingReader, Role, Roles, tells_usage
from proxy.dialects.usage.meters import METERED_MEMBERS, UsageMeter
from proxy.json_text.encoded_name import encoded_name
from proxy.json_text.json_edit import Json, edit_member, find_member, remove_member
from proxy.json_text.member_scanner import MemberScanner, Wanted

_SCANNED_MEMBERS = failures.TELLING_MEMBERS | METERED_MEMBERS
HEAD_BYTES = 4 << 10
"""Bytes of a frame that are searched for the model's name without parsing it."""
LESSONS = 8
"""Number of deltas that are tried as the pattern for the others: the first ones of a stream may differ."""

# A frame with the model before any nested value, as in every delta of a Chat Completions stream.
_MODEL = re.compile(rb'data: ?\{(?:[^{}\[\]]*,)?\s*"model"\s*+:\s*+("[^"\\]*+")')
_NULL_AT_END = re.compile(rb'"usage"\s*+:\s*+null\s*+(?=\}\s*+\Z)')
_NULL_ENDING = b',"usage":null}\n\n'
_ENDING = b"}\n\n"
_NO_OPENING = b"\0"
_NOTHING = re.compile(rb"(?!)")


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """The form of an API's stream."""

    roles: Roles
    holder: str | None = None
    """The member of an event that wraps `model` and `usage`, if the API nests them."""
    last: bytes = b""
    """The last event, if it says nothing about the answer: then it can be supplied."""
    metered: re.Pattern[bytes] = _NOTHING
    """A pattern in events that the meter reads beside those with usage."""


class StreamReader(FinishingReader):
    """Reads a stream: each frame passes as soon as it is complete, but for its finish and its end."""

    __slots__ = (
        *("_drop_usage", "_expected", "_framer", "_lessons", "_opening", "_opening_as_slug", "_pattern"),
        *("_scanned_role", "_scanner", "_shape", "_slug", "reported"),
    )

    streams = True
    unknown_stop = ""

    def __init__(
        self, shape: StreamFormat, slug: str, meter: UsageMeter, *, drop_usage: bool = False, is_alone: bool = True
    ) -> None:
        super().__init__(is_alone=is_alone)
        self._shape = shape
        self._slug = encoded_name(slug)
        self.reported = meter
        self._drop_usage = drop_usage
        self._framer = sse.Framer()
        self._scanner: MemberScanner | None = None
        """Reads an oversized frame."""
        self._scanned_role = Role.OUTPUT
        # The bytes up to the model's name: the same in all deltas of a stream.
        self._opening = self._opening_as_slug = _NO_OPENING
        self._pattern = self._expected = MATCHES_NOTHING  # expected: the pattern, where a frame begins and may pass
        self._lessons = LESSONS

    def feed(self, data: bytes) -> bytes:
        prefix, prefix_sent, suffix, suffix_sent, start, end = self._expected
        text = data[start:end]
        if prefix + text + suffix == data:  # nearly all reads
            if LF not in text and CR not in text and (QUOTE not in text or INSIDE_STRING.fullmatch(text)):
                return prefix_sent + text + suffix_sent
            several = self._expected.rewritten(data)
            if several is not None:
                return several
        passed = self._feed_other(data)
        self._note()
        self._expected = self._pattern if self.flows and self._framer.at_boundary else MATCHES_NOTHING
        return passed

    def _feed_other(self, data: bytes) -> bytes:
        """Read what is not deltas of the pattern alone."""
        if self._framer.at_boundary and (frames := sse.whole_frames(data)):
            return b"".join(map(self._passed, frames))
        return b"".join([self._passed(piece, kind) for piece, kind in self._framer.split(data)])

    def end(self) -> bytes:
        rest = self._framer.flush()
        last = self._passed(rest, sse.FRAME if self._scanner is None else sse.TAIL) if rest else b""
        frames = self._end_frames
        self._end_frames = b""
        return last + frames

    def prepare_end_in_slices(self) -> Generator[None, None, None]:
        yield from ()

    def _missing_end(self) -> bytes:
        return self._shape.last

    def _passed(self, piece: bytes, kind: int = sse.FRAME) -> bytes:
        if self.ended:
            return b""
        if kind == sse.FRAME:
            return self._frame(piece)
        return self._leave(piece, Role.OTHER) if kind == sse.COMMENT else self._oversized(piece, kind)

    def _frame(self, received: bytes) -> bytes:
        """Return the frame as the caller gets it. Parses it only if it is no ordinary delta."""
        frame = received
        opening = self._opening
        if self.waits or frame.find(failures.ERROR_KEY) >= 0 or self._shape.roles.mark.search(frame):
            return self._parsed(frame)
        at = frame.rfind(b'"usage"')
        if at >= 0:
            if _NULL_AT_END.match(frame, at) is None:
                return self._parsed(frame)
            if self._drop_usage:
                frame = _without_last_member(frame, at)
        if frame.startswith(opening) and frame.find(b'"model"', len(opening)) < 0:
            passed = self._opening_as_slug + frame[len(opening) :]
            return self._learned(received, passed, len(opening)) if self._lessons else passed
        if not self._shape.holder and frame.count(b'"model"') == 1 and (match := _MODEL.match(frame, 0, HEAD_BYTES)):
            start, end = match.span(1)
            opening = frame[:end]
            as_slug = frame[:start] + self._slug
            if b'"usage"' not in opening:
                self._opening = opening
                self._opening_as_slug = as_slug
            return as_slug + frame[end:]
        return self._parsed(frame)

    def _parsed(self, frame: bytes) -> bytes:
        if frame.startswith(sse.ERROR_FIELD):
            self.failed = True
            return self._leave(frame, Role.OTHER)
        role = self._shape.roles.of_frame(frame)
        tells_nothing = b'"model"' not in frame and b'"usage"' not in frame and failures.ERROR_KEY not in frame
        tells_nothing = tells_nothing and not self._shape.metered.search(frame)
        if role is None and tells_nothing and not self.waits and not self._shape.roles.mark.search(frame):
            role = Role.OUTPUT
        if role is not None and tells_nothing:
            return self._leave(self._learned(frame, frame) if role is Role.OUTPUT else frame, role)
        frame, start, end = _on_one_line(frame)
        payload = frame[start:end]
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError:
            event = None
        if not isinstance(event, dict):
            scanner = self._new_scanner()
            scanned = frame[:start] + scanner.feed(payload) + scanner.end() + frame[end:]
            return self._leave(scanned, role or Role.OUTPUT)
        self._see(event)
        if role is None:
            role = self._shape.roles.of_event(event)
        is_report = tells_usage(event, self.reported)
        return self._leave(self._edited(frame, (start, end), event), role, is_report)

    def _edited(self, frame: bytes, place: tuple[int, int], event: Json) -> bytes:
        """A parsed frame as the caller gets it; empty if it holds nothing but the usage that we asked for."""
        start, end = place
        payload = frame[start:end]
        if self._drop_usage and "usage" in event:
            if event["usage"] is not None and not _has_output(event):
                return b""
            if event["usage"] is None:
                payload = remove_member(payload, event, "usage")
                del event["usage"]
        return frame[:start] + self._renamed(payload, event) + frame[end:]

    def _learned(self, frame: bytes, passed: bytes, opening_bytes: int = 0) -> bytes:
        """Return `passed`, the caller's form of a frame that was not parsed. The first ones teach the others' pattern.

        Whatever was looked for in the frame is not in the text of another that matches, where quotes are escaped.
        """
        if self._lessons:
            self._lessons -= 1
            opening_sent_bytes = len(self._opening_as_slug) if opening_bytes else 0
            self._pattern = learn_from(frame, passed, opening_bytes, opening_sent_bytes) or self._pattern
        return passed

    def _renamed(self, payload: bytes, event: Json) -> bytes:
        holder = self._shape.holder
        inner = event.get(holder) if holder else None
        if not holder or not isinstance(inner, dict):
            return edit_member(payload, event, "model", self._slug) if "model" in event else payload
        if "model" not in inner:
            return payload
        member = find_member(payload, event, holder)
        raw = payload[member.start : member.end] if member else orjson.dumps(inner)
        return edit_member(payload, event, holder, edit_member(raw, inner, "model", self._slug))

    def _see(self, event: Json) -> None:
        """Read usage and failure of an event, or of what was found of it."""
        self.reported.observe(event)
        self.failed = self.failed or failures.reports_failure(event, self._shape.holder)

    def _new_scanner(self) -> MemberScanner:
        return MemberScanner(Wanted(_SCANNED_MEMBERS, self._shape.holder, self._slug), self._see)

    def _oversized(self, piece: bytes, kind: int) -> bytes:
        """Pass part of an oversized frame, which is scanned for its usage and the model's name."""
        if self._scanner is None:
            self._scanned_role = self._shape.roles.of_frame(piece[:TAIL_BYTES]) or Role.OUTPUT
            self._scanner = self._new_scanner()
        passing = self._scanner.feed(piece)
        if kind == sse.TAIL:
            passing += self._scanner.end()
            self._scanner = None
        elif self._scanned_role is Role.LAST:
            return self._hold(passing)
        return self._leave(passing, self._scanned_role)


class MessagesStreamReader(StreamReader):
    """Reads a Messages stream: its deltas hold neither model nor usage and pass without further checks."""

    __slots__ = ()

    def _frame(self, received: bytes) -> bytes:
        if self.waits or received.find(b'"content_block_delta"') < 0 or received.find(b'"usage"') >= 0:
            return super()._frame(received)
        return self._learned(received, received)


def _has_output(event: Json) -> bool:
    """Return whether a chunk with the usage carries more: choices, an error, or a list, such as of citations."""
    return bool(event.get("error")) or any(isinstance(value, list) and value for value in event.values())


def _without_last_member(frame: bytes, key_at: int) -> bytes:
    """Remove `"usage":null`, the last member, and the comma before it; `{"usage":null}` has none."""
    if frame.endswith(_NULL_ENDING):
        return frame[: -len(_NULL_ENDING)] + _ENDING
    end = frame.index(b"null", key_at) + 4
    before = key_at
    while frame[before - 1] in b" \t\r\n":
        before -= 1
    return frame[: before - 1 if frame[before - 1] == ord(",") else key_at] + frame[end:]


def _on_one_line(frame: bytes) -> tuple[bytes, int, int]:
    """The frame with its data on one line, and the data's start and end. Line feeds between tokens do not matter."""
    span = sse.data_span(frame)
    data = b"" if span else sse.data_of(frame).replace(b"\n", b" ")
    if span or not data:
        return (frame, *(span or (0, 0)))
    event = sse.event_of(frame)
    head = (b"event: " + event + b"\n" if event else b"") + b"data: "
    return head + data + b"\n\n", len(head), len(head) + len(data)
