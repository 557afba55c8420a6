"""Heads that this server has parsed before. SDKs send the same head with each call; only its `content-length` differs.

A request that arrives whole, by itself, with such a head needs no second parse. Why this cannot change a request's
meaning: docs/decisions/0053-heads-seen-before.md. Keys hold credentials: never log them.
"""

from proxy.edges.http.request_head import ParsedHead

MAX_HEAD_BYTES = 4096
"""Longer heads are not kept."""
MAX_HEADS = 2048
MAX_KEPT_BYTES = 1 << 20
"""Of all keys together. When a bound is reached, everything is dropped."""
MAX_SEEN_ONCE = 4096
_HEAD_END = b"\r\n\r\n"
_FIELD, _FIELD_END = b"\r\ncontent-length: ", b"ength: "
"""How the length's field begins; the end of it is searched for, as names come in either case."""
_MAX_DIGITS = 7
_NOT_PLAIN = frozenset(("expect", "upgrade"))


class HeadsSeen:
    """Parsed heads by their bytes, without the digits of their length.

    A head is kept when it comes a second time, so that heads with unique values, such as a trace's, displace none.
    """

    def __init__(self) -> None:
        self._heads: dict[bytes, ParsedHead] = {}
        self._kept_bytes = 0
        self._once: set[int] = set()
        """Hashes of keys that came once."""
        self._missed = b""
        """The key of the last read that was not recalled."""

    def recall(self, data: memoryview) -> tuple[ParsedHead, bytes] | None:
        """The head and body of a request that is all of `data`; None if it must be parsed.

        `data` must begin where a request may begin.
        """
        read = bytes(data[:MAX_HEAD_BYTES])
        end = read.find(_HEAD_END) + 4
        start = read.find(_FIELD_END, 0, end) + 7
        stop = read.find(b"\r", start, start + _MAX_DIGITS + 1)
        if start <= 7 or stop < 0:
            self._missed = b""
            return None
        key = read[:start] + read[stop:end]
        head = self._heads.get(key)
        digits = read[start:stop]
        if head is None or not digits.isdigit() or int(digits) != len(data) - end:
            self._missed = key
            return None
        return head, bytes(data[end:])

    def remember(self, data: memoryview, head: ParsedHead) -> None:
        """Keep `head` if it comes a second time. It was parsed from `data`: one whole request, just not recalled."""
        key = self._missed
        mark = hash(key)
        if mark not in self._once:
            if len(self._once) >= MAX_SEEN_ONCE:
                self._once.clear()
            self._once.add(mark)
        elif key and _is_plain(data, head):
            if len(self._heads) >= MAX_HEADS or self._kept_bytes + len(key) > MAX_KEPT_BYTES:
                self.drop()
            self._heads[key] = head
            self._kept_bytes += len(key)

    def drop(self) -> None:
        """Drop everything."""
        self._heads.clear()
        self._once.clear()
        self._kept_bytes = 0


def _is_plain(data: memoryview, head: ParsedHead) -> bool:
    """Whether the digits that a key lacks are the length's, and only a body so long can follow, then another request.

    The parser has refused folded fields and a second length.
    """
    length = head.declared_bytes
    special = head.fault or head.closes or not head.modern or head.method == "CONNECT"
    if length is None or special or head.first.keys() & _NOT_PLAIN:
        return False
    read = bytes(data[: len(data) - length])
    field, _, rest = read.partition(_FIELD_END)
    digits = rest.partition(b"\r")[0]
    named = (field + _FIELD_END).lower().endswith(_FIELD)
    return named and digits.isdigit() and read.find(_HEAD_END) == len(read) - len(_HEAD_END)
