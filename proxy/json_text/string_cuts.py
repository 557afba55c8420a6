"""Places where the inside of a JSON string may be cut, and where it ends. Pure.

Time is linear in the text whatever it holds.
"""

MAX_BYTES = 256 << 10
_ALL_BACKSLASHES = b"\\" * MAX_BYTES
_HIGH_SURROGATES = frozenset((b"d8", b"d9", b"da", b"db"))


def first_unescaped_quote(piece: bytes) -> int:
    """Offset of the first quote without a backslash that escapes it; -1 if none. No escape may straddle the start."""
    if b'"' not in piece:
        return -1
    return piece.replace(b"\\\\", b"__").replace(b'\\"', b"__").find(b'"')


def safe_cut(raw: bytes, start: int, at: int) -> int:
    """An offset near `at` and after `start` that splits no character, no escape and no pair of surrogates.

    `start` must be such an offset, at least a hundred bytes and at most `MAX_BYTES` before `at`. The result may lie a
    few bytes after the end of the text.
    """
    while at > start + 8 and raw[at] & 0xC0 == 0x80:  # a UTF-8 continuation byte
        at -= 1
    slash = raw.rfind(b"\\", at - 6, at)
    if slash < 0:
        return at
    if _trailing_backslashes(raw[start : slash + 1]) % 2 == 0:  # the last of them is itself escaped
        return at
    if raw[slash + 1 : slash + 2] != b"u":
        return max(at, slash + 2)
    return slash if raw[slash + 2 : slash + 4].lower() in _HIGH_SURROGATES else max(at, slash + 6)


def _trailing_backslashes(piece: bytes) -> int:
    """Count the backslashes at the end. Gallops, then bisects: a comparison is ten times as fast as `rstrip`."""
    if piece == _ALL_BACKSLASHES[: len(piece)]:
        return len(piece)
    high = 1
    while high < len(piece) and piece.endswith(_ALL_BACKSLASHES[:high]):
        high *= 2
    low = 0
    high = min(high, len(piece))
    while low < high:
        middle = (low + high + 1) // 2
        if piece.endswith(_ALL_BACKSLASHES[:middle]):
            low = middle
        else:
            high = middle - 1
    return low
