"""How many values a JSON text holds, told before any of them is made: parsing makes an object of each.

Pure. 100 MB of `{},{},…` would become 3 GB of objects and stop the worker's loop for many seconds; a hundred bytes a
value is what any real request has. Two passes at the speed of memory, the second only where the first is not enough.
"""

SMALL_BYTES = 1 << 20
"""Not worth counting: whatever is in there is parsed in milliseconds."""
MAX_VALUES = 500_000
"""No vendor takes more tokens in one call than this, even each as a number of its own."""


def is_within_bounds(text: bytes) -> bool:
    """Whether `text` holds no more than MAX_VALUES. What is no JSON may be counted as it likes: no parser takes."""
    if len(text) <= SMALL_BYTES or _separators(text) <= MAX_VALUES:
        return True
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 2 * MAX_VALUES:
        return False
    return _separators(b"".join(unescaped.split(b'"')[::2])) <= MAX_VALUES


def _separators(text: bytes) -> int:
    """Each value but the first of its container follows a comma, and the first one its container's opening."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")
