"""Reads the boundary of a form from `content-type`, and writes that field for the upstream. Pure.

See docs/reference/inference.md#forms.
"""

import re
from collections.abc import Sequence

from proxy.refusals import MalformedRequestError

_MEDIA_TYPE = "multipart/form-data"
_CHARACTERS = r"[A-Za-z0-9'()+_,./:=?-]{1,70}"  # RFC 2046 5.1.1, without the space
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
_CHARSET = r'(?:[ \t]*;[ \t]*charset="?utf-8"?)?'
_BOUNDARY = rf'[ \t]*;[ \t]*boundary=(?:"({_CHARACTERS})"|([A-Za-z0-9\'+_.-]{{1,70}}))'
_FORM = re.compile(_MEDIA_TYPE + _CHARSET + _BOUNDARY + _CHARSET, re.IGNORECASE)


def is_form(content_type: str | None) -> bool:
    """Return whether a body of this `content-type` is a form, or may be read as one."""
    return content_type is not None and content_type.strip().lower().startswith("multipart/")


def boundary_of(content_types: Sequence[str]) -> bytes:
    """The boundary. `content_types`: all values of the field. Raises `MalformedRequestError`."""
    match = _FORM.fullmatch(content_types[0].strip()) if len(content_types) == 1 else None
    if match is None:
        raise MalformedRequestError(
            f"content-type of a form must be {_MEDIA_TYPE}, a boundary of at most 70 characters,"
            " and no charset but utf-8"
        )
    return (match[1] or match[2]).encode()


def content_type_of(boundary: bytes) -> str:
    """The field for the upstream. It depends on nothing but the boundary, which is quoted only if it has to be."""
    text = boundary.decode()
    return f"{_MEDIA_TYPE}; boundary={text}" if _PLAIN.fullmatch(text) else f'{_MEDIA_TYPE}; boundary="{text}"'
