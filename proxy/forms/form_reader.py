"""Reads a form piece by piece: checks its framing and each part, finds `model` and `n`, passes its bytes on.

Pure. Every `--boundary` in the body must be a delimiter of its own, so that no other parser can find more or fewer
parts. Nothing of a part is returned before its head was checked, nor the form's end unless all was valid.

See docs/reference/inference.md#forms.
"""

import re
from enum import Enum

from proxy.forms.part_head import GUARDED, PartHead, parse_part_head
from proxy.http_rules.vendor_state import REASON, names_state
from proxy.refusals import MalformedRequestError

MAX_HEAD_BYTES = 8_192
MAX_PARTS = 1_000
MAX_VALUE_BYTES = 1_024
"""Longest `model`, `stream` or `n`."""
_CRLF = b"\r\n"
_END = b"--"
_MODEL = b"model"
_N = b"n"
_WHOLE_NUMBER = re.compile("[0-9]{1,9}")
_NOT_TEXT = re.compile(r"[\x00-\x1f\x7f]")


class _State(Enum):
    START = "before the first delimiter"
    HEAD = "in the head of a part"
    CONTENT = "in the content of a part"
    END = "after the last delimiter"


class FormReader:
    """One form. `model`: its value, once that part is complete."""

    __slots__ = (
        *("_at", "_boundary", "_content_bytes", "_data", "_head", "_model_at", "_model_bytes", "_names", "_out"),
        *("_parts", "_state", "_state_part", "_takes_state", "_value", "model", "most_n", "n", "streaming"),
    )

    def __init__(self, boundary: bytes) -> None:
        self._boundary = b"--" + boundary
        self._state = _State.START
        self._data = b""
        self._at = 0
        """Offset of the bytes that are not judged yet: between two pieces, part of a delimiter or of a head."""
        self._out: list[bytes] = []
        self._head = PartHead(b"", None)
        self._content_bytes = 0
        self._parts = 0
        self._value: bytes | None = None
        """The content of a guarded part so far; None in any other part."""
        self._names: set[bytes] = set()
        self._state_part = ""
        """The name of a part that names state in the vendor's account."""
        self._takes_state = True
        self._model_at = -1
        self._model_bytes = 0
        self.model: str | None = None
        self.streaming = False
        self.n: int | None = None
        """Number of answers that the form asks for, once that part is complete."""
        self.most_n: int | None = None
        """The largest `n` that may still come."""

    def feed(self, data: bytes) -> None:
        """Read the next bytes. Raises `MalformedRequestError`."""
        self._data += data
        while self._step():
            pass
        self._data = self._data[self._at :]
        self._at = 0

    def end(self) -> None:
        """The body has ended. Raises `MalformedRequestError` unless the form is complete."""
        if self._state is not _State.END or self._data not in (b"", _CRLF):
            raise MalformedRequestError("the form ends before its last delimiter")
        self._pass(len(self._data))

    def drain(self) -> list[bytes]:
        """The bytes for the upstream since the last call, in order, once `rename` was called."""
        out = self._out
        self._out = []
        return out

    def rename(self, model: str) -> int:
        """Give the upstream this model. Returns by how many bytes that makes the form longer. Call before `drain`."""
        part = b'Content-Disposition: form-data; name="model"\r\n\r\n' + model.encode()
        if self._boundary in part:
            raise _ambiguous()
        self._out[self._model_at] = part
        return len(part) - self._model_bytes

    def forbid_state(self) -> None:
        """Refuse parts that name state in the vendor's account, past and future ones."""
        self._takes_state = False
        self._check_state()

    def _check_state(self) -> None:
        if self._state_part and not self._takes_state:
            raise MalformedRequestError(f"{self._state_part} {REASON}")

    def _step(self) -> bool:
        """Judge the next bytes; False if more are needed."""
        match self._state:
            case _State.START:
                return self._delimiter(0) if self._begins() else False
            case _State.HEAD:
                return self._read_head()
            case _State.CONTENT:
                return self._read_content()
            case _State.END:
                if not _CRLF.startswith(self._data[self._at :]):
                    raise MalformedRequestError("the form has bytes after its last delimiter")
                return False

    def _begins(self) -> bool:
        first = self._data[: len(self._boundary)]
        if not self._boundary.startswith(first):
            raise MalformedRequestError("the form must begin with its boundary")
        return len(first) == len(self._boundary)

    def _delimiter(self, at: int) -> bool:
        """Read the delimiter whose `--boundary` is at this offset; False if more bytes are needed."""
        end = at + len(self._boundary) + 2
        if len(self._data) < end:
            return False
        closing = self._data[end - 2 : end]
        if closing not in (_CRLF, _END):
            raise _ambiguous()
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise MalformedRequestError(f"the form has more than {MAX_PARTS} parts")
        self._pass(end - self._at)
        self._state = _State.HEAD if closing == _CRLF else _State.END
        return True

    def _read_head(self) -> bool:
        data = self._data
        start = self._at
        end = data.find(b"\r\n\r\n", start, start + MAX_HEAD_BYTES)
        if end < 0 and len(data) - start < MAX_HEAD_BYTES:
            return False
        raw = data[start:end]
        if end < 0 or self._boundary in raw:
            raise MalformedRequestError(f"the head of a form's part is longer than {MAX_HEAD_BYTES} bytes, or broken")
        self._head = head = parse_part_head(raw)
        if names_state(head.name.decode()):
            self._state_part = head.name.decode()
            self._check_state()
        if head.name in GUARDED:
            if head.name in self._names:
                raise MalformedRequestError(f"{head.name.decode()} occurs more than once in the form")
            self._names.add(head.name)
            self._value = b""
        if head.name == _MODEL:  # its bytes are replaced
            self._model_bytes = end + 4 - start
            self._at = end + 4
        else:
            self._pass(end + 4 - start)
        self._content_bytes = 0
        self._state = _State.CONTENT
        return True

    def _read_content(self) -> bool:
        data = self._data
        boundary = self._boundary
        start = self._at
        at = data.find(boundary, start)
        if at < 0:
            self._content(max(0, len(data) - start - len(boundary) - 1))
            return False
        if data[max(start, at - 2) : at] != _CRLF:
            raise _ambiguous()
        self._content(at - 2 - start)
        if len(data) < at + len(boundary) + 2:
            return False
        self._end_part()
        return self._delimiter(at)

    def _content(self, size: int) -> None:
        """The next `size` bytes are content of this part."""
        head = self._head
        self._content_bytes += size
        if head.size_bytes is not None and self._content_bytes > head.size_bytes:
            raise _wrong_size(head)
        if self._value is not None:
            self._value += self._data[self._at : self._at + size]
            if len(self._value) > MAX_VALUE_BYTES:
                raise MalformedRequestError(f"{head.name.decode()} is longer than {MAX_VALUE_BYTES} bytes")
        if head.name == _MODEL:
            self._model_bytes += size
            self._at += size
        else:
            self._pass(size)

    def _end_part(self) -> None:
        head = self._head
        value = self._value
        if head.size_bytes is not None and self._content_bytes != head.size_bytes:
            raise _wrong_size(head)
        if value is None:
            return
        self._value = None
        text = _text(head.name, value)
        if head.name == _MODEL:
            self.model = text
            self._model_at = len(self._out)
            self._out.append(b"")
        elif head.name == _N:
            self.n = self._count(text)
        elif text not in ("true", "false"):
            raise MalformedRequestError("stream must be true or false, in lower case")
        else:
            self.streaming = text == "true"

    def _count(self, text: str) -> int:
        if not _WHOLE_NUMBER.fullmatch(text):
            raise MalformedRequestError("n must be a whole number")
        if self.most_n is not None and int(text) > self.most_n:
            raise MalformedRequestError(f"n above {self.most_n} must stand before model in the form")
        return int(text)

    def _pass(self, size: int) -> None:
        """The next `size` bytes go upstream."""
        if size:
            self._out.append(self._data[self._at : self._at + size])
            self._at += size


def _wrong_size(head: PartHead) -> MalformedRequestError:
    return MalformedRequestError(f"{head.name.decode()}: its content-length is not its size")


def _ambiguous() -> MalformedRequestError:
    return MalformedRequestError("the form's boundary occurs where no part of the form begins or ends")


def _text(name: bytes, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not text or _NOT_TEXT.search(text):
        raise MalformedRequestError(f"{name.decode()} must be a text of one line")
    return text
