"""Bounds on what a JSON text may hold. Checked before parsing, which makes one object per value and blocks the loop.

Pure. Bytes inside strings are cheap (`large_json.py` handles them in slices), values are not: 100 MB of `{},{},…` would
become 3 GB of objects. The bounds are far above what any vendor accepts in one call.
"""

SMALL_BYTES = 128 << 10
"""Texts up to this size are not counted: they parse in a few milliseconds whatever they hold."""
MAX_VALUES = 500_000
"""No vendor accepts more tokens than this in one call, even if each were a number of its own."""
MAX_STRINGS = 100_000
"""Most values, with the keys of objects."""
MAX_CONTAINERS = 25_000
"""Objects and lists."""
MAX_OUTSIDE_BYTES = 6_000_000
"""Bytes outside of long strings: short strings, numbers, punctuation, white space."""
MAX_MEMBERS = 1_000
"""Members of the outermost object."""
_FEW = 4_096


class TooManyValuesError(ValueError):
    """A JSON text holds more than may be parsed. The message names the bound and completes "the body …"."""


class ValueCounter:
    """Counts the values of a text from the bytes between its strings."""

    __slots__ = ("_containers", "_outside_bytes", "_separators", "_strings")

    def __init__(self) -> None:
        self._containers = self._outside_bytes = self._separators = self._strings = 0

    def add(self, between: bytes, strings: int = 0, short_bytes: int = 0) -> None:
        """Count `strings` more strings, the bytes `between` them, and `short_bytes`, the size of the short ones.

        Raises `TooManyValuesError` above a bound.
        """
        containers = between.count(b"[") + between.count(b"{")
        self._containers += containers
        self._separators += containers + between.count(b",")
        self._outside_bytes += len(between) + short_bytes
        self._strings += strings
        if self._separators > MAX_VALUES:
            raise TooManyValuesError(f"holds more than {MAX_VALUES} values")
        if self._strings > MAX_STRINGS:
            raise TooManyValuesError(f"holds more than {MAX_STRINGS} strings")
        if self._containers > MAX_CONTAINERS:
            raise TooManyValuesError(f"holds more than {MAX_CONTAINERS} objects and lists")
        if self._outside_bytes > MAX_OUTSIDE_BYTES:
            raise TooManyValuesError(f"holds more than {MAX_OUTSIDE_BYTES} bytes outside of its long strings")


def is_surely_within_bounds(text: bytes) -> bool:
    """Return whether `text` is small, or would be within the bounds even if none of its bytes were inside a string.

    False does not mean out of bounds: a long prompt is full of commas. For texts of at most `MAX_OUTSIDE_BYTES`.
    """
    return len(text) <= SMALL_BYTES or holds_few_values(text)


def holds_few_values(text: bytes) -> bool:
    """`is_surely_within_bounds` without an exception for small texts."""
    containers = _count(text, b"[") + _count(text, b"{")
    if containers > MAX_CONTAINERS or (len(text) > MAX_VALUES and containers + _count(text, b",") > MAX_VALUES):
        return False
    return len(text) <= 2 * MAX_STRINGS or _count(text, b'"') <= 2 * MAX_STRINGS


def _count(text: bytes, byte: bytes) -> int:
    """Return `text.count(byte)`, up to ten times as fast where the byte is rare: `replace` finds it by memchr(3)."""
    number = len(text) - len(text.replace(byte, b"", _FEW))
    return number if number < _FEW else text.count(byte)
