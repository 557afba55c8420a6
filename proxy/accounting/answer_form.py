"""Decides how a success is read: by its first bytes, and by its label where they do not tell.

Pure. Servers label streams as JSON, JSON as text, and much not at all; clients read what they asked for.
"""

from enum import Enum, auto

_BLANK = b" \t\r\n"
_UTF_8_MARK = b"\xef\xbb\xbf"
_NOT_TEXT = bytes.maketrans(b"", b""), b"\0\xff\xfe\xef\xbb\xbf" + _BLANK
"""Byte-order marks, white space, and the zeros of UTF-16 and UTF-32."""
_FIELDS = (b"data", b"event", b"id", b"retry")
_LONGEST_FIELD_BYTES = 6
_MEDIA = ("audio/", "image/", "video/")


class Form(Enum):
    """The form of an answer."""

    STREAM = auto()
    """Server-sent events."""
    JSON = auto()
    """A body of one JSON value, which is held until its end."""
    JSON_LINES = auto()
    """JSON texts that are read as they come."""
    OTHER = auto()
    """Something that is not read."""


def form_of(beginning: bytes) -> Form | None:
    """Return the form of a text that begins with `beginning`; None if more of it is needed."""
    text = beginning.removeprefix(_UTF_8_MARK).lstrip(_BLANK)
    name = text[:_LONGEST_FIELD_BYTES].partition(b":")[0]
    if text.startswith(b":") or (name in _FIELDS and len(name) < len(text)):
        return Form.STREAM
    if any(field.startswith(text) for field in _FIELDS) or _UTF_8_MARK.startswith(text):
        return None  # also if there is nothing but white space
    start = text[:_LONGEST_FIELD_BYTES].translate(*_NOT_TEXT)
    return Form.JSON if start.startswith((b"{", b"[")) else Form.OTHER


def form_of_values(beginning: bytes) -> Form | None:
    """Return the form of JSON by its beginning: one value, or objects on lines of their own; None if more is needed."""
    line, _, rest = beginning.strip(_BLANK).partition(b"\n")
    if not rest:
        return None
    return Form.JSON_LINES if line.rstrip().endswith(b"}") and rest.lstrip().startswith(b"{") else Form.JSON


def labelled_form(content_type: str, streaming: bool) -> Form:
    """The form that the label tells; without one, what the caller asked for."""
    media = content_type.partition(";")[0].strip().lower()
    if not media:
        return Form.STREAM if streaming else Form.JSON
    if media == "text/event-stream":
        return Form.STREAM
    return Form.JSON if media == "application/json" or media.endswith("+json") else Form.OTHER


def is_media(content_type: str) -> bool:
    """Return whether an answer is sound or a picture, whose bytes may look like anything."""
    return content_type.lstrip().lower().startswith(_MEDIA)
