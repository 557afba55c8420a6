"""Rewrites the deltas of a stream without parsing them: nearly all differ from one another only in their text.

Pure. Learn the fixed prefix and suffix from one of the first deltas; then compare only the text between them.
"""

import re
from typing import NamedTuple

_TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning|arguments|thinking|partial_json)": ?"([^"\\\r\n]*)"')
INSIDE_STRING = re.compile(rb'(?:[^"\\\r\n]++|\\[^\r\n])*+')
"""The inside of a JSON string: every quote in it is escaped, and no escape is cut off at its end."""
QUOTE, LF, CR = b'"\n\r'
"""Bytes as integers: `in` then takes a tenth of the time."""


class DeltaPattern(NamedTuple):
    """The bytes before and after a delta's text, as received and as sent to the caller.

    Bytes are one more delta of this pattern if they are `prefix`, text and `suffix`, and the text is `INSIDE_STRING`.
    Safe without parsing: if all quotes in the text are escaped, it cannot end its string or hold another member;
    without a line break, it cannot hold another frame.
    """

    prefix: bytes
    prefix_sent: bytes
    suffix: bytes
    suffix_sent: bytes
    start: int
    """Offset at which the text begins."""
    end: int
    """Offset at which it ends, counted from the end: negative."""

    def rewritten(self, deltas: bytes) -> bytes | None:
        """The caller's bytes for one delta of this pattern or several in a row; None for anything else."""
        texts = self._texts(deltas)
        if texts is None or not all(map(INSIDE_STRING.fullmatch, texts)):
            return None
        return self.prefix_sent + (self.suffix_sent + self.prefix_sent).join(texts) + self.suffix_sent

    def joined_text(self, *pieces: bytes) -> bytes | None:
        """The texts of deltas of this pattern, still escaped; None for anything else. A piece is mostly one delta."""
        prefix, _, suffix, _, start, end = self
        deltas = b"".join(pieces)
        texts: list[bytes] | None = [piece[start:end] for piece in pieces]
        text = b"".join(texts or ())
        if LF in text or prefix + (suffix + prefix).join(texts or ()) + suffix != deltas:
            texts = self._texts(deltas)
            text = b"".join(texts or ())
        return text if texts is not None and INSIDE_STRING.fullmatch(text) else None

    def _texts(self, deltas: bytes) -> list[bytes] | None:
        """Cut the texts out of their lines, and compare the deltas that have these texts with what is there.

        To split at suffix and prefix would be simpler, but to look for long bytes takes `bytes.split` a preparation.
        """
        if self is MATCHES_NOTHING:
            return None
        prefix = self.prefix
        suffix = self.suffix
        between = suffix + prefix
        start = self.start - prefix.rfind(b"\n") - 1
        end = -suffix.find(b"\n")
        texts = [line[start:end] for line in deltas.split(b"\n")[prefix.count(b"\n") : -1 : between.count(b"\n")]]
        return texts if prefix + between.join(texts) + suffix == deltas else None


MATCHES_NOTHING = DeltaPattern(b"\0", b"", b"\0", b"", 0, -1)
"""Prefix, text and suffix have one byte more than any delta."""


def learn_from(frame: bytes, passed: bytes, offset: int, passed_offset: int) -> DeltaPattern | None:
    """Return the pattern of deltas like `frame`; None if it has no plain text.

    `passed`: the frame as the caller gets it. From `offset` in the frame and `passed_offset` in `passed`, the two are
    equal at least to the end of the text.
    """
    match = _TEXT.search(frame, offset)
    if match is None or not frame.endswith(b"\n"):
        return None
    start, end = match.span(1)
    shift = passed_offset - offset
    prefix = frame[:start]
    suffix = frame[end:]
    return DeltaPattern(prefix, passed[: start + shift], suffix, passed[end + shift :], start, -len(suffix))
