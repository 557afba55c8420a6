"""Heads that begin otherwise than nearly every one, or come in several reads: keeps them, and checks the status lines.

Each, interim ones included, must name HTTP/1.0 or HTTP/1.1: httptools also accepts HTTP/0.9, HTTP/2.0, `RTSP/1.0` and
`ICE/1.0`. This module only finds lines and ends of heads; the parser decides whether they are well-formed.
"""

from proxy.edges.upstream.answer_head import END

_PREFIXES = (b"HTTP/1.1 ", b"HTTP/1.0 ")
_CODE_AT = len(_PREFIXES[0])
FINAL = tuple(b"HTTP/1.1 %d" % digit for digit in range(2, 6))
"""The beginnings of nearly every answer: its only status line, and a good one, so there is nothing to find."""
_LINE_START_BYTES = 16
"""The bytes of an incomplete line that are kept: enough for the protocol, an interim status and an empty line."""


class UnusualHead:
    """Reads an answer's bytes in parallel to the parser, until the head is complete.

    `is_final`: the first read begins with one of `FINAL`, so there is no other status line. Otherwise it is an interim
    answer, HTTP/1.0, or a short read.
    """

    __slots__ = ("_in_interim", "_is_final", "_line", "_received")

    def __init__(self, is_final: bool) -> None:
        self._line = self._received = b""
        self._in_interim = False
        self._is_final = is_final

    def final(self) -> bytes:
        """The head, and what follows it, once the parser has found it complete. Forgets it."""
        received = self._received.lstrip(b"\r\n")
        self._received = b""
        return received

    def drop_interim(self) -> None:
        """Drop an interim answer that the parser has read."""
        self._received = self._received.lstrip(b"\r\n").partition(END)[2]

    def are_http(self, data: memoryview) -> bool:
        """Return whether all complete status lines name HTTP/1.0 or HTTP/1.1. `data`: the next bytes."""
        self._received += data
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
