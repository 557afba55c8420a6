"""Bodies in `aws-chunked` form, with a checksum behind the last chunk. Pure; bounded, whatever arrives.

`<hexadecimal size>\\r\\n<bytes>\\r\\n`, the last one of size 0, then lines `name:value\\r\\n` and an empty line.
"""

import re
from collections.abc import Iterator

from control.api.uploads.s3_errors import S3Error, invalid_request

_MAX_LINE = 1024
_MAX_TRAILERS = 10
_SIZE = re.compile(rb"[0-9a-fA-F]{1,12}")


class ChunkDecoder:
    """`feed` yields the content of what it is fed; `trailers` and `has_ended` are known at the end."""

    def __init__(self) -> None:
        self.trailers: dict[str, str] = {}
        """The values by lower-case name."""
        self.has_ended = False
        self._rest = b""
        self._of_chunk = 0
        """The bytes of the present chunk that are still to come."""
        self._is_behind_chunk = False
        self._is_behind_last = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """S3Error if it is not of this form."""
        self._rest += data
        while self._rest and not self.has_ended:
            if self._of_chunk:
                piece = self._rest[: self._of_chunk]
                self._rest = self._rest[len(piece) :]
                self._of_chunk -= len(piece)
                self._is_behind_chunk = not self._of_chunk
                yield piece
            elif (line := self._line()) is None:
                return
            else:
                self._read(line)
        if self._rest:
            raise _broken()

    def _line(self) -> bytes | None:
        """The next line; None if it has not arrived as a whole."""
        line, end, rest = self._rest.partition(b"\r\n")
        if len(line) > _MAX_LINE:
            raise _broken()
        if not end:
            return None
        self._rest = rest
        return line

    def _read(self, line: bytes) -> None:
        if self._is_behind_chunk:
            self._is_behind_chunk = False
            if line:
                raise _broken()
        elif self._is_behind_last:
            self._read_trailer(line)
        elif _SIZE.fullmatch(line):
            self._of_chunk = int(line, 16)
            self._is_behind_last = not self._of_chunk
        else:
            raise _broken()

    def _read_trailer(self, line: bytes) -> None:
        field, colon, value = line.decode("latin-1").partition(":")
        name = field.strip().lower()
        if not line:
            self.has_ended = True
        elif not colon or name in self.trailers or len(self.trailers) >= _MAX_TRAILERS:
            raise _broken()
        else:
            self.trailers[name] = value.strip()


def _broken() -> S3Error:
    return invalid_request("The body is not in the form aws-chunked")
