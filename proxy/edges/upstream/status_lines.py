"""The status lines of one answer: those of interim answers, and the final one. Each must name HTTP/1.0 or HTTP/1.1.

httptools takes HTTP/0.9 and HTTP/2.0 as well, and `RTSP/1.0` and `ICE/1.0` for HTTP/1.0, without a word. Here only
lines are told apart; whether they are well-formed is the parser's to say.
"""

_NAMED = (b"HTTP/1.1 ", b"HTTP/1.0 ")
_CODE_AT = len(_NAMED[0])
_FINAL = frozenset(b"HTTP/1.1 %d" % digit for digit in range(2, 6))
_KEPT_BYTES = 16
"""Of a line that is not whole yet; enough to tell the protocol, an interim answer's code and an empty line."""


class StatusLines:
    """Reads an answer's bytes beside the parser, until its head is complete."""

    __slots__ = ("_in_interim", "_is_final", "_line")

    def __init__(self) -> None:
        self._line = b""
        self._in_interim = self._is_final = False

    def are_http(self, data: memoryview) -> bool:
        """Whether those that are whole name it; `data` is what came next."""
        if self._is_final:
            return True
        if not self._line and not self._in_interim and bytes(data[: _CODE_AT + 1]) in _FINAL:
            self._is_final = True  # nearly always
            return True
        *lines, rest = (self._line + bytes(data)).split(b"\n")
        self._line = rest[:_KEPT_BYTES]
        return all(map(self._is_http, lines))

    def _is_http(self, line: bytes) -> bool:
        line = line.rstrip(b"\r")
        if self._in_interim:
            self._in_interim = bool(line)
        elif line and not self._is_final:  # the parser passes over empty lines before an answer
            self._in_interim = line.startswith(b"1", _CODE_AT)
            self._is_final = not self._in_interim
            return line.startswith(_NAMED)
        return True
