"""Parses the head of one part of a form. Accepts what stock clients send, and nothing that parsers disagree on. Pure.

See docs/reference/inference.md#forms.
"""

import re
from dataclasses import dataclass

from proxy.refusals import MalformedRequestError

MAX_FIELDS = 16
GUARDED = frozenset((b"model", b"stream", b"n"))
"""The names that the gateway reads. Each may occur once, as text."""
REFUSED = {
    b"metadata": "a form cannot carry metadata; send the header x-request-metadata",
    b"_charset_": "_charset_ is not accepted: a form's text is UTF-8",
}
_FIELD = re.compile(rb"([A-Za-z0-9-]{1,64}):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_TOKEN = rb"[A-Za-z0-9!#$&+.^_`|~\[\]-]+"
_DISPOSITION = re.compile(
    rb'form-data[ \t]*;[ \t]*name=(?:"([A-Za-z0-9_.\[\]-]{1,128})"|([A-Za-z0-9_.-]{1,128}))'
    rb'(?:[ \t]*;[ \t]*filename=(?:"([^"\\]*)"|(' + _TOKEN + rb")))?"
    rb"(?:[ \t]*;[ \t]*filename\*=[A-Za-z0-9!#$&+.^_`|~%'-]+)?"
)
_NAME_INSIDE = re.compile(rb";[ \t]*name", re.I)
_BASE = re.compile(rb"[^\[\].]+")
_PLAIN_TEXT = re.compile(rb'text/plain(?:[ \t]*;[ \t]*charset="?(?:utf-8|us-ascii)"?)?', re.I)
_NESTED = (b"multipart/", b"message/")
_IDENTITY = {b"content-transfer-encoding": (b"7bit", b"8bit", b"binary"), b"content-encoding": (b"identity",)}


@dataclass(frozen=True, slots=True)
class PartHead:
    """A part's name, and the size that it declares, if it does."""

    name: bytes
    size_bytes: int | None


def parse_part_head(raw: bytes) -> PartHead:
    """Parse a head without its final empty line. Raises `MalformedRequestError`."""
    fields = _fields(raw)
    match = _DISPOSITION.fullmatch(fields.get(b"content-disposition", b""))
    if match is None:
        raise MalformedRequestError(
            "each part of the form must have one content-disposition: form-data; name of letters, digits and _.[]-,"
            " then filename if it is a file, without backslashes"
        )
    name = match[1] or match[2]
    filename = match[3] if match[3] is not None else match[4]
    if filename is not None and (_NAME_INSIDE.search(filename) or (match[2] and _base(filename) in GUARDED)):
        raise MalformedRequestError(f"{name.decode()}: its filename looks like the name of another part")
    _check_name(name)
    kind = fields.get(b"content-type", b"")
    if kind.lower().startswith(_NESTED):
        raise MalformedRequestError(f"{name.decode()} must not be a multipart message itself")
    for field, allowed in _IDENTITY.items():
        if fields.get(field, allowed[0]).lower() not in allowed:
            raise MalformedRequestError(f"{name.decode()} must not be encoded ({field.decode()})")
    if name in GUARDED and (b"filename" in match[0] or (kind and not _PLAIN_TEXT.fullmatch(kind))):
        raise MalformedRequestError(f"{name.decode()} must be a text field of the form, not a file")
    return PartHead(name, _size(name, fields.get(b"content-length")))


def _fields(raw: bytes) -> dict[bytes, bytes]:
    lines = raw.split(b"\r\n")
    fields: dict[bytes, bytes] = {}
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None or match[1].lower() in fields or len(fields) == MAX_FIELDS:
            raise MalformedRequestError(
                f"a part of the form has a malformed, folded or repeated header field, or more than {MAX_FIELDS}"
            )
        fields[match[1].lower()] = match[2]
    return fields


def _check_name(name: bytes) -> None:
    base = _base(name)
    if base in REFUSED:
        raise MalformedRequestError(REFUSED[base])
    if base in GUARDED and name not in GUARDED:
        raise MalformedRequestError(f"{name.decode()} must be spelled {base.decode()}")


def _base(name: bytes) -> bytes:
    """The name without regard to case, and without what some frameworks read as brackets, an index or a member."""
    match = _BASE.search(name.lower())
    return match[0] if match else b""


def _size(name: bytes, declared: bytes | None) -> int | None:
    if declared is None:
        return None
    if not re.fullmatch(rb"[0-9]{1,12}", declared):
        raise MalformedRequestError(f"{name.decode()}: its content-length is not a number")
    return int(declared)
