"""ULIDs: 26 characters that sort by time, for event keys and request ids. The caller supplies clock and random bytes.

Written by hand, because each request makes one or two and the library takes ten times as long.
"""

from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_SPELLED_BITS = 20
_TIME_SHIFTS = range(20, -1, -10)
_RANDOM_CHARS = 16
_DRAWN = 256
_SLICES = [slice(_RANDOM_CHARS * number, _RANDOM_CHARS * (number + 1)) for number in range(_DRAWN)]
_CHAR_OF_BYTE = (_ALPHABET * 8).encode()


class Ulids:
    """Make ULIDs. `now_ns`: UTC nanoseconds (`time.time_ns`); `chance`: random bytes (`secrets.token_bytes`).

    Chance is drawn and spelled for many at once, a byte for each character (its upper three bits are not used). Of the
    time, all but the last four characters stay for a quarter of an hour.
    """

    def __init__(self, now_ns: Callable[[], int], chance: Callable[[int], bytes]) -> None:
        self._now_ns = now_ns
        self._chance = chance
        self._chars = ""
        self._remainder = 0  # of the slices of `_chars`
        self._quarter = -1  # quarters of an hour, of 2 ** 20 ms
        self._spelled = ""

    def __call__(self) -> str:
        ms = self._now_ns() // 1_000_000
        if ms >> _SPELLED_BITS != self._quarter:
            self._quarter = ms >> _SPELLED_BITS
            self._spelled = "".join([_PAIRS[self._quarter >> shift & 1023] for shift in _TIME_SHIFTS])
        count = self._remainder or self._draw()
        self._remainder = count - 1
        return f"{self._spelled}{_PAIRS[ms >> 10 & 1023]}{_PAIRS[ms & 1023]}{self._chars[_SLICES[count - 1]]}"

    def _draw(self) -> int:
        self._chars = self._chance(_DRAWN * _RANDOM_CHARS).translate(_CHAR_OF_BYTE).decode()
        return _DRAWN
