"""Reads answers in the caller's own dialect that are not streams: JSON bodies are held whole, others pass through.

Pure. Of a body above `MAX_BODY_BYTES`, or with too many values, only both ends are read: they hold model and usage.
"""

import re
from collections.abc import Generator
from itertools import accumulate
from typing import Any

import orjson

from proxy.accounting.metering import NOTHING_REPORTED, Reported
from proxy.dialects.failures import is_failure
from proxy.dialects.usage import UsageMeter
from proxy.json_text.encoded_name import encoded_name
from proxy.json_text.json_bounds import SMALL_BYTES, TooManyValuesError
from proxy.json_text.json_edit import edit_member, edit_members, last_object_named
from proxy.json_text.segmented_body import SegmentedBody
from proxy.json_text.sliced_json import parse_in_slices
from proxy.time_slices import at_once

MAX_BODY_BYTES = 32 << 20
ENDS_BYTES = 64 << 10

_MODEL_FIRST = re.compile(rb'\A\s*\{(?:[^{}\[\]]*,)?\s*+"model"\s*+:\s*+("[^"\\]*+")')
_MODEL_LAST = re.compile(rb'.*[{,]\s*+"model"\s*+:\s*+("[^"\\]*+")', re.DOTALL)


class PassThroughReader:
    """Passes errors and answers that are not JSON. Holds only the last read until `end`."""

    __slots__ = ("_last",)
    reported: Reported = NOTHING_REPORTED
    failed = False
    unknown_stop = ""
    streams = True

    def __init__(self) -> None:
        self._last = b""

    def feed(self, data: bytes) -> bytes:
        passing, self._last = self._last, data
        return passing

    def prepare_end_in_slices(self) -> Generator[None, None, None]:
        yield from ()

    def end(self) -> bytes:
        return self._last


class BodyReader:
    """Holds a JSON body until it is complete. A body too large to hold passes, except for its tail."""

    __slots__ = ("_held", "_limit", "_passing", "_renamed", "_result", "_size", "_slug", "failed", "reported")
    streams = False
    unknown_stop = ""

    def __init__(self, slug: str, meter: UsageMeter, limit: int = MAX_BODY_BYTES) -> None:
        self._held: list[bytes] = []
        self._size = 0
        self._limit = limit
        self._passing = False
        self._renamed = False
        self._slug = encoded_name(slug)
        self.reported = meter
        self._result: bytes | None = None
        self.failed = False

    def feed(self, data: bytes) -> bytes:
        self._held.append(data)
        self._size += len(data)
        if self._size <= (2 * ENDS_BYTES if self._passing else self._limit):
            return b""
        return self._pass_on()

    def prepare_end_in_slices(self) -> Generator[None, None, None]:
        """Parse and rename in slices. Never raises: a body that is not JSON passes unchanged."""
        if self._passing:
            return
        raw = yield from SegmentedBody(*self._held).join_in_slices()
        self._held.clear()
        try:
            answer, outline = yield from parse_in_slices(raw)
            changes = {"model": self._slug} if self._observe(answer) else {}
            result = edit_members(raw, answer, changes, outline)
        except TooManyValuesError:
            head, tail = self._rename(_MODEL_FIRST, raw[:ENDS_BYTES]), self._read_tail(raw[-ENDS_BYTES:])
            result = SegmentedBody(head, memoryview(raw)[ENDS_BYTES:-ENDS_BYTES], tail)
        except orjson.JSONDecodeError:
            result = raw
        self._result = result if isinstance(result, bytes) else (yield from result.join_in_slices())

    def end(self) -> bytes:
        if self._result is None and self._size > SMALL_BYTES:
            at_once(self.prepare_end_in_slices())
        if self._result is not None:
            return self._result
        raw = b"".join(self._held)
        if self._passing:
            return self._read_tail(raw)
        try:
            answer = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return raw
        return edit_member(raw, answer, "model", self._slug) if self._observe(answer) else raw

    def _observe(self, answer: Any) -> bool:
        """Read usage and failure. Returns whether there is a model to rename."""
        if not isinstance(answer, dict):
            return False
        self.reported.observe(answer)
        self.failed = not answer.get("choices") and is_failure(answer)
        return "model" in answer

    def _pass_on(self) -> bytes:
        """Pass on all but the last `ENDS_BYTES`. A long body is copied only once."""
        going, last = self._held, b""
        while len(last) < ENDS_BYTES:  # the size that is held is larger
            last = going.pop() + last
        going.append(last[:-ENDS_BYTES])
        self._held, self._size = [last[-ENDS_BYTES:]], ENDS_BYTES
        if not self._passing:
            self._passing = True
            count = 1 + sum(size < ENDS_BYTES for size in accumulate(map(len, going)))
            first = b"".join(going[:count])
            going[:count] = self._rename(_MODEL_FIRST, first[:ENDS_BYTES]), first[ENDS_BYTES:]
        return b"".join(going)

    def _read_tail(self, tail: bytes) -> bytes:
        usage = last_object_named(tail, b"usage")
        if usage is not None:
            self.reported.observe_usage(usage)
        return tail if self._renamed else self._rename(_MODEL_LAST, tail)

    def _rename(self, pattern: re.Pattern[bytes], part: bytes) -> bytes:
        match = pattern.match(part)
        if match is None:
            return part
        self._renamed = True
        return part[: match.start(1)] + self._slug + part[match.end(1) :]
