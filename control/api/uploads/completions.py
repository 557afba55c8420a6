"""Reads the body of CompleteMultipartUpload: XML of one form, without entities, of bounded size."""

from xml.parsers import expat

from control.api.uploads.s3_errors import S3Error
from control.resources.uploads.uploads import MAX_PARTS, ListedPart

MAX_BYTES = 4 * 1024 * 1024
_ROOT = "CompleteMultipartUpload"
_PART = "Part"
_MAX_DEPTH = 3


class _Reader:
    """Collects the parts while a parser reads."""

    def __init__(self) -> None:
        self.parts: list[ListedPart] = []
        self._open: list[str] = []
        self._text = ""
        self._members: dict[str, str] = {}

    def start(self, name: str, _attributes: dict[str, str]) -> None:
        self._open.append(name.rpartition("}")[2])
        self._text = ""
        if len(self._open) > _MAX_DEPTH or self._open[:2] != [_ROOT, _PART][: len(self._open)][:2]:
            raise _malformed()
        if len(self._open) == 2:
            self._members = {}

    def end(self, _name: str) -> None:
        name = self._open.pop()
        if len(self._open) == 2:
            self._members[name] = self._text.strip()
        elif len(self._open) == 1:
            self._add()

    def text(self, text: str) -> None:
        self._text += text

    def _add(self) -> None:
        number = self._members.get("PartNumber", "")
        if not (number.isascii() and number.isdecimal() and 1 <= int(number[:6]) <= MAX_PARTS):
            raise _malformed()
        self.parts.append(ListedPart(int(number[:6]), self._members.get("ETag", "").strip('"')))
        if len(self.parts) > MAX_PARTS:
            raise _malformed()


def listed_parts(body: bytes) -> list[ListedPart]:
    """The parts that a completion lists. S3Error if it is malformed, or declares anything of its own."""
    reader = _Reader()
    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = _refuse
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, ValueError):
        raise _malformed() from None
    return reader.parts


def _refuse(*_declaration: object) -> None:
    raise _malformed()


def _malformed() -> S3Error:
    return S3Error(400, "MalformedXML", "The body is not the list of parts that a completion needs")
