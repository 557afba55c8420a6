"""Checks that each status line of an answer, interim ones included, names HTTP/1.0 or HTTP/1.1.

httptools also accepts HTTP/0.9, HTTP/2.0, `RTSP/1.0` and `ICE/1.0`. This module only finds the lines; the parser
decides whether they are well-formed.
"""

_PREFIXES = (b"HTTP/1.1 ", b"HTTP/1.0 ")
_CODE_AT = len(_PREFIXES[0])
FINAL = tuple(b"HTTP/1.1 %d" % digit for digit in range(2, 6))
"""How nearly every answer begins: its only status line, and a good one, so there is nothing to find."""
_LINE_START_BYTES = 16
"""How much of an incomplete line is kept: enough for the protocol, an interim status and an empty line."""


class StatusLines:
    """Reads an answer's bytes in parallel to the parser, until the head is complete.

    For an answer whose first read does not begin with one of `FINAL`: interim ones, HTTP/1.0, or a short read.
    """

    __slots__ = ("_in_interim", "_is_final", "_line")

    def __init__(self) -> None:
        self._line = b""
        self._in_interim = self._is_final = False

    def are_http(self, data: memoryview) -> bool:
        """Whether all complete status lines name HTTP/1.0 or HTTP/1.1. `data`: the next bytes."""
        if self._is_final:
            return True
        *lines, rest = (self._line + bytes(data)).split(b"\n")
        self._line = rest[:_LINE_START_BYTES]
        return all(map(self._is_http, lines))

    def _is_http(self, line: bytes) -> bool:
        line = line.rstrip(b"\r")
        if self._in_interim:
            self._in_interim = bool(line)
        elif line and not self._is_final:  # the parser skips empty lines before an answer
            self._in_interim = line.startswith(b"1", _CODE_AT)
            self._is_final = not self._in_interim
            return line.startswith(_PREFIXES)
        return True
