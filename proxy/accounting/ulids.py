"""ULIDs: 26 characters that sort by time, for event keys and request ids. The caller supplies clock and random bytes.

Written by hand, because each request makes one or two and the library takes ten times as long.
"""

import re
from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_SPELLED_BITS = 10
_TIME_SHIFTS = range(30, -1, -10)
_RANDOM_CHARS = 16
_DRAWN = 256
_RANDOM_PART = re.compile("." * _RANDOM_CHARS)
_CHAR_OF_BYTE = (_ALPHABET * 8).encode()


class Ulids:
    """Make ULIDs. `now_ns`: UTC nanoseconds (`time.time_ns`); `chance`: random bytes (`secrets.token_bytes`).

    Chance is drawn and spelled for many at once, a byte for each character (its upper three bits are not used). Of the
    time, all but the last two characters stay for a second.
    """

    def __init__(self, now_ns: Callable[[], int], chance: Callable[[int], bytes]) -> None:
        self._now_ns = now_ns
        self._chance = chance
        self._drawn: list[str] = []
        self._second = -1  # of 2 ** 10 ms
        self._spelled = ""

    def make(self) -> str:
        """Make one."""
        ms = self._now_ns() // 1_000_000
        if ms >> _SPELLED_BITS != self._second:
            self._second = ms >> _SPELLED_BITS
            self._spelled = "".join([_PAIRS[self._second >> shift & 1023] for shift in _TIME_SHIFTS])
        return f"{self._spelled}{_PAIRS[ms & 1023]}{(self._drawn or self._draw()).pop()}"

    def _draw(self) -> list[str]:
        chars = self._chance(_DRAWN * _RANDOM_CHARS).translate(_CHAR_OF_BYTE).decode()
        self._drawn = drawn = _RANDOM_PART.findall(chars)
        return drawn
