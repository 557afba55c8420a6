"""Reads answers in the caller's own dialect that are not streams: JSON bodies are held whole, others pass through.

Pure. What a parser refuses, and what is too large to be parsed, is scanned for its usage and the model's name. A body
above `MAX_BODY_BYTES` is not held any longer: it passes while it is scanned.
"""

from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any

import orjson

from policy.billing import MAX_REPORTED_TOKENS, REPORTED
from proxy.accounting.answer_form import Form, form_of, form_of_values, is_media, labelled_form
from proxy.accounting.metering import NOTHING_REPORTED, AnswerReader, Bill, Reported
from proxy.dialects.dialect_attempt import DialectAttempt
from proxy.dialects.failures import ERROR_KEY, TELLING_MEMBERS, is_failure, reports_failure
from proxy.dialects.finish import NothingHeld
from proxy.dialects.usage.meters import METERED_MEMBERS, UsageMeter, usual_report
from proxy.json_text.encoded_name import encoded_name
from proxy.json_text.json_bounds import SMALL_BYTES, TooManyValuesError
from proxy.json_text.json_edit import edit_member, edit_members
from proxy.json_text.lenient_json import UTF_8, encoding_of
from proxy.json_text.member_scanner import MemberScanner, Wanted
from proxy.json_text.segmented_body import SegmentedBody
from proxy.json_text.sliced_json import parse_in_slices
from proxy.records.messages import Received
from proxy.time_slices import at_once

MAX_BODY_BYTES = 32 << 20
UNREAD_BYTES = 4_096
"""Most bytes to wait with for those that tell the answer's form: white space."""
FIRST_LINE_BYTES = 64 << 10
"""Most bytes to wait with for the end of the first line of JSON, and for what follows it."""
SCANNED_BYTES = 64 << 10
"""Bytes that are scanned in one step."""
_WANTED = Wanted(TELLING_MEMBERS | METERED_MEMBERS)

Work = Generator[None, None, bytes]


class UnreadAnswer(NothingHeld):
    """A success of which too little came to tell its form. Its first bytes choose the reader that they are fed to."""

    __slots__ = ("_is_file", "_is_labelled", "_is_translated", "_label", "_reader", "_streaming", "begun", "streams")
    reported: Reported = NOTHING_REPORTED
    failed = False
    unknown_stop = ""

    def feed(self, data: bytes) -> bytes:
        raise AssertionError("no reader was chosen")

    def prepare_end_in_slices(self) -> Generator[None, None, None]:
        yield from ()

    def end(self) -> bytes:
        return b""

    def __init__(
        self,
        content_type: str,
        streaming: bool,
        reader: Callable[[Form], AnswerReader],
        *,
        is_file: bool = False,
        is_translated: bool = False,
    ) -> None:
        """`streaming`: whether the caller asked for a stream. `is_file`: the bytes may look like anything, and are not
        read. `is_translated`: lines of JSON must be known as such, whatever the caller asked for."""
        self.begun = b""
        self._label = labelled_form(content_type, streaming)
        self._is_labelled = bool(content_type)
        self._streaming = streaming
        self._reader = reader
        self._is_file = is_file or is_media(content_type)
        self._is_translated = is_translated
        self.streams = self._is_labelled and self._label is Form.STREAM

    def reader(self, data: bytes, *, is_all: bool = False) -> AnswerReader | None:
        """The reader of an answer that goes on so; None if more bytes are needed. Feed it `begun`.

        `is_all`: no more will come. Raises `UpstreamResetError` for an answer that cannot be read and must be.
        """
        self.begun += data
        if self._is_file:
            return self._reader(Form.OTHER)
        form = form_of(self.begun)
        if form is None and not is_all and len(self.begun) <= UNREAD_BYTES:
            return None
        if form is None or (form is Form.OTHER and self._is_labelled):
            form = self._label
        if form is Form.JSON:
            form = self._form_of_json(is_all or len(self.begun) > FIRST_LINE_BYTES)
        return None if form is None else self._reader(form)

    def _form_of_json(self, is_enough: bool) -> Form | None:
        """Return whether JSON is one value or lines. None if more bytes are needed: JSON that is held can wait."""
        if not self._is_translated:
            if not self._streaming:
                return Form.JSON
            if self._label is Form.OTHER or _begins_with_a_line(self.begun):
                return Form.JSON_LINES
        return form_of_values(self.begun) or (Form.JSON if is_enough else None)


class PassThroughReader(NothingHeld):
    """Passes errors and answers that are not JSON. Holds only the last read until `end`."""

    __slots__ = ("_last",)
    reported: Reported = NOTHING_REPORTED
    failed = False
    unknown_stop = ""
    streams = True

    def __init__(self) -> None:
        self._last = b""

    def feed(self, data: bytes) -> bytes:
        passing = self._last
        self._last = data
        return passing

    def prepare_end_in_slices(self) -> Generator[None, None, None]:
        yield from ()

    def end(self) -> bytes:
        return self._last


class ScanningReader(NothingHeld):
    """Scans JSON for its usage, its failure and the model's name: a whole answer, or events on lines of their own."""

    __slots__ = ("_event_meter", "_holder", "_slug", "failed", "reported")
    unknown_stop = ""

    def __init__(
        self, slug: str, meter: UsageMeter, event_meter: UsageMeter | None = None, holder: str | None = None
    ) -> None:
        """`meter` reads a whole answer, `event_meter` events as those of a stream. `holder`: what wraps their model
        and usage."""
        self._slug = encoded_name(slug)
        self._event_meter = event_meter or meter
        self._holder = holder
        self.reported = meter
        self.failed = False

    def _new_scanner(self) -> MemberScanner:
        return MemberScanner(_WANTED._replace(holder=self._holder, model=self._slug), self._found)

    def _found(self, members: dict[str, Any]) -> None:
        """Read the members of an outermost object."""
        is_event = members.get("type") not in (None, self._holder)  # a whole answer has no type, or that of the holder
        if is_event:
            self.reported = self._event_meter
        self.reported.observe(members)
        fails = reports_failure(members, self._holder) if is_event else is_failure(members)
        self.failed = self.failed or (fails and not members.get("choices"))


class JsonLinesReader(ScanningReader):
    """Passes JSON texts as they come. Holds the last read until `end`."""

    __slots__ = ("_last", "_scanner", "flows")
    streams = True

    def __init__(
        self, slug: str, meter: UsageMeter, event_meter: UsageMeter | None = None, holder: str | None = None
    ) -> None:
        super().__init__(slug, meter, event_meter, holder)
        self._scanner = self._new_scanner()
        self._last = b""
        self.flows = True

    def feed(self, data: bytes) -> bytes:
        passing = self._last
        self._last = self._scanner.feed(data)
        return passing

    def prepare_end_in_slices(self) -> Generator[None, None, None]:
        yield from ()

    def end(self) -> bytes:
        return self._last + self._scanner.end()

    def _found(self, members: dict[str, Any]) -> None:
        super()._found(members)
        self.flows = not self.failed


class BodyReader(ScanningReader):
    """Holds a JSON body until it is complete. A body too large to hold passes, except for its last bytes."""

    __slots__ = ("_limit", "_pieces", "_result", "_scanner", "_size")
    streams = False

    def __init__(
        self,
        slug: str,
        meter: UsageMeter,
        event_meter: UsageMeter | None = None,
        holder: str | None = None,
        *,
        limit: int = MAX_BODY_BYTES,
    ) -> None:
        super().__init__(slug, meter, event_meter, holder)
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._limit = limit
        self._scanner: MemberScanner | None = None
        """Reads a body that passes before its end."""
        self._result: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        self._pieces.append(data)
        self._size += len(data)
        if self._scanner is None:
            if self._size <= self._limit:
                return b""
            self._scanner = self._new_scanner()
        passing = b""
        for _ in range(2):  # one more than came, so that less and less is held
            if len(self._pieces) > 1:
                passing += self._scanner.feed(self._pieces.popleft())
        return passing

    def prepare_end_in_slices(self) -> Generator[None, None, None]:
        """Parse and rename in slices. Never raises: a body that is not JSON passes unchanged."""
        if self._scanner is not None:
            self._result = yield from _scanned(self._scanner, SegmentedBody(*self._pieces))
            return
        raw = yield from SegmentedBody(*self._pieces).join_in_slices()
        self._pieces.clear()
        try:
            answer, outline = yield from parse_in_slices(raw)
        except (TooManyValuesError, orjson.JSONDecodeError):
            self._result = yield from self._read_leniently(raw)
            return
        if not isinstance(answer, dict):
            self._result = yield from self._read_leniently(raw)
            return
        result = edit_members(raw, answer, {"model": self._slug} if self._observe(answer) else {}, outline)
        self._result = result if isinstance(result, bytes) else (yield from result.join_in_slices())

    def end(self) -> bytes:
        if self._result is None and (self._size > SMALL_BYTES or self._scanner is not None):
            at_once(self.prepare_end_in_slices())
        if self._result is not None:
            return self._result
        raw = b"".join(self._pieces)
        try:
            answer = orjson.loads(raw)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            return at_once(self._read_leniently(raw))
        return edit_member(raw, answer, "model", self._slug) if self._observe(answer) else raw

    def _observe(self, answer: Any) -> bool:
        """Read usage and failure. Returns whether there is a model to rename."""
        self.reported.observe(answer)
        self.failed = not answer.get("choices") and is_failure(answer)
        return "model" in answer

    def _read_leniently(self, raw: bytes) -> Work:
        """Read and rename a body that is no JSON object, or one of too many values, as far as it is one."""
        encoding = encoding_of(raw)
        if encoding == UTF_8:
            return (yield from _scanned(self._new_scanner(), SegmentedBody(raw)))
        try:
            text = raw[len(encoding.mark) :].decode(encoding.name).encode()
        except UnicodeError:
            return raw
        read = yield from _scanned(self._new_scanner(), SegmentedBody(text))
        return raw if read == text else encoding.mark + read.decode("utf-8", "replace").encode(encoding.name)


class WholeAnswers:
    """Reads JSON answers that came whole with their head and report their usage, as nearly all do that are no streams.

    `BodyReader` reads them as well. It takes 11 Python calls and 230 bytecodes more, 2 µs of a governed call of 53.
    """

    def __init__(self, meters: Mapping[str, Callable[[int], UsageMeter]], usual_paths: Collection[str]) -> None:
        """`meters`: how usage is read, by path. `usual_paths`: where nearly all reports have one shape."""
        self._meters = meters
        self._usual_paths = usual_paths

    def read(
        self,
        request: Received,
        attempt: DialectAttempt,
        content_type: str,
        body: bytes,
        most: int = MAX_REPORTED_TOKENS,
    ) -> tuple[bytes, Bill] | None:
        """Return what the caller gets of a success, and what was reported. `most`: the largest plausible figure.

        None for an answer that is translated, is no JSON, or has no valid report: another reader knows it. All of it
        is parsed, though only two members are wanted: to search for them is as safe only in valid JSON, and only a
        parser can tell that.
        """
        path = request.facts.path
        if path not in self._meters or attempt.request is not None or len(body) > SMALL_BYTES:
            return None
        if content_type != "application/json" and (is_media(content_type) or not body.lstrip().startswith(b"{")):
            return None
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(answer, dict) or (not answer.get("choices") and is_failure(answer)):
            return None
        report = usual_report(answer, most) if path in self._usual_paths else None
        if report is None:
            meter = self._meters[path](most)
            meter.observe(answer)
            tokens = meter.tokens
            if tokens is None:
                return None
            report = (tokens, meter.details)
        if "model" in answer:
            body = edit_member(body, answer, "model", encoded_name(request.slug))
        return body, Bill(*report, REPORTED)


def _begins_with_a_line(beginning: bytes) -> bool:
    """Return whether an answer begins with a JSON object on a line of its own, which tells no failure."""
    line, end, _ = beginning.lstrip().partition(b"\n")
    return bool(end) and line.rstrip().endswith(b"}") and ERROR_KEY not in line


def _scanned(scanner: MemberScanner, body: SegmentedBody) -> Work:
    passing = []
    for piece in body.pieces(SCANNED_BYTES):
        passing.append(scanner.feed(bytes(piece)))
        yield
    return b"".join((*passing, scanner.end()))
