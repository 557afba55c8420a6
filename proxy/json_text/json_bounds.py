"""How much a JSON text holds, told before it is parsed: parsing makes an object of each value, and holds the loop.

Pure. Bytes inside strings are cheap (`large_json.py` reads them in slices), values are not: 100 MB of `{},{},…` would
become 3 GB of objects. The bounds are far above what any vendor takes in one call.
"""

SMALL_BYTES = 128 << 10
"""Not worth counting: whatever is in there is parsed in a few milliseconds."""
MAX_VALUES = 500_000
"""No vendor takes more tokens in one call than this, even each as a number of its own."""
MAX_STRINGS = 100_000
"""Keys of objects included."""
MAX_CONTAINERS = 25_000
"""Objects and lists."""
MAX_OUTSIDE_BYTES = 6_000_000
"""What stands outside of long strings: short ones, numbers, punctuation, white space."""
MAX_MEMBERS = 1_000
"""Members of the outermost object."""


class TooManyValuesError(ValueError):
    """A JSON text holds more than may be parsed; the text says more than what."""


class Extent:
    """Counts what a text holds, from what stands between its strings."""

    __slots__ = ("_containers", "_outside_bytes", "_separators", "_strings")

    def __init__(self) -> None:
        self._containers = self._outside_bytes = self._separators = self._strings = 0

    def add(self, between: bytes, strings: int = 0, short_bytes: int = 0) -> None:
        """So many more strings, what stands between them, and how long the short ones are together.

        Raises `TooManyValuesError` beyond a bound.
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
    """Whether `text` is small, or holds no more even if all in it stood outside of strings.

    False says nothing: a long prompt is full of commas. For texts of a few megabytes, which have no room for more
    than `MAX_OUTSIDE_BYTES`.
    """
    if len(text) <= SMALL_BYTES:
        return True
    containers = text.count(b"[") + text.count(b"{")
    if containers > MAX_CONTAINERS or containers + text.count(b",") > MAX_VALUES:
        return False
    return text.count(b'"') <= 2 * MAX_STRINGS
