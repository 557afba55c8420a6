"""The deltas of one stream: nearly all of them differ from the one before in their text alone.

Pure. What is told of such a delta was found out with one of the first; of the others only the text is looked at.
"""

import re

_TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning|arguments|thinking|partial_json)": ?"([^"\\\r\n]*)"')
_CLOSED = re.compile(rb'(?:[^"\\]++|\\.)*+')
"""All of a string that its next quote would end: the quotes in it are escaped."""
_QUOTE, _LF, _CR = b'"\n\r'
"""As numbers, because `in` then costs a tenth."""


class DeltaPattern:
    """A delta around its text, as it comes and as the caller is told of it."""

    __slots__ = ("_ending", "_ending_bytes", "_ending_told", "_opening", "_opening_bytes", "_opening_told")

    def __init__(self, opening: bytes, opening_told: bytes, ending: bytes, ending_told: bytes) -> None:
        self._opening, self._opening_told = opening, opening_told
        self._ending, self._ending_told = ending, ending_told
        self._opening_bytes, self._ending_bytes = len(opening), len(ending)

    def told(self, data: bytes) -> bytes | None:
        """What the caller gets for `data`; None where it is not one more delta like this one.

        A text whose quotes are escaped hides no member and no end of its string; without a line's end, no other frame.
        """
        start, stop = self._opening_bytes, len(data) - self._ending_bytes
        if data[stop:] != self._ending or data[:start] != self._opening or stop < start:
            return None
        text = data[start:stop]
        if _LF in text or _CR in text or (_QUOTE in text and not _CLOSED.fullmatch(text)):
            return None
        return self._opening_told + text + self._ending_told

    def texts(self, frames: list[bytes]) -> bytes | None:
        """The texts of deltas like this one, put together; None where not all are."""
        opening, ending, start, stop = self._opening, self._ending, self._opening_bytes, -self._ending_bytes
        shortest = start - stop
        cut = [f[start:stop] for f in frames if f.startswith(opening) and f.endswith(ending) and len(f) >= shortest]
        if len(cut) < len(frames):
            return None
        text = b"".join(cut)
        if _LF in text or _CR in text or (_QUOTE in text and not _CLOSED.fullmatch(text)):
            return None
        return text


MATCHES_NOTHING = DeltaPattern(b"\0", b"", b"\0", b"")
"""No frame is like this one."""


def learn_from(frame: bytes, told: bytes, known: int, known_told: int) -> DeltaPattern | None:
    """What deltas like `frame` have in common; None where it has no plain text.

    `told`: the same for the caller. They are alike from `known` and `known_told` on, to the text's end at least.
    """
    match = _TEXT.search(frame, known)
    if match is None:
        return None
    start, end = match.span(1)
    shift = known_told - known
    return DeltaPattern(frame[:start], told[: start + shift], frame[end:], told[end + shift :])
