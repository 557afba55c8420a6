"""Heads that this server has parsed before. SDKs send the same head with each call; only its `content-length` differs.

A request that arrives whole, by itself, with such a head needs no second parse, nor does one whose head differs from it
in nothing but the credential. Why this cannot change a request's meaning:
docs/hot-path.md#a-head-that-came-before-is-not-parsed-again. Keys hold credentials: never log them.
"""

from string import ascii_letters, digits

from policy.credentials import KEY_PREFIX
from proxy.edges.http.request_head import ParsedHead
from proxy.edges.recently_used import RecentlyUsed

MAX_HEAD_BYTES = 4096
"""The longest head that is kept."""
KEPT_BYTES = 10_000_000
"""The most memory that all kept heads take together."""
_HEAD_BYTES = 2_000
"""The memory of a head beside its key, with what stages keep with it."""
SEEN_ONCE = 8192
"""The number of heads that came once and are remembered."""
ALIKE_KEPT = 256
"""The number of heads that are kept for callers with other credentials. Few clients differ in more."""
_LINE_END = b"\r\n"
_HEAD_END = b"\r\n\r\n"
_FIELD = b"\r\ncontent-length: "
_FIELD_END = b"ength: "
"""The end of `_FIELD`. It is searched for instead of the whole, as names come in upper and lower case."""
_MOST_DIGITS = 9
"""The most digits in the length of a body that is still to come. We accept no body whose length has more."""

_CREDENTIAL_PREFIX = KEY_PREFIX.encode()
_CREDENTIAL_BYTES = f"{ascii_letters}{digits}._-".encode()
"""The bytes of our keys. None of them means anything to a parser."""

_Key = tuple[bytes, bytes]
"""A head without its length: what stands before `ength: `, and what follows the length's line."""
_Alike = tuple[bytes, int, bytes, bytes]
"""A head without its length and credential: what stands before the credential, its size, what follows its line until
`ength: `, and what follows the length's line."""


class HeadsSeen:
    """Parsed heads by their bytes, without the digits of their length.

    A head is kept when it comes a second time, so that heads with unique values, such as a trace's, displace none.
    """

    def __init__(self) -> None:
        self._heads = RecentlyUsed[_Key, ParsedHead](KEPT_BYTES, _weigh)
        self._alike = RecentlyUsed[_Alike, ParsedHead](ALIKE_KEPT)
        self._once = RecentlyUsed[int, bool](SEEN_ONCE)
        """Hashes of keys that came once."""
        self._missed: _Key | None = None
        """The key of the last read that was not recalled; None if its head was incomplete or long."""

    def recall(self, buffer: memoryview, nbytes: int) -> tuple[ParsedHead, bytes] | None:
        """The head and body of a request that is the first `nbytes` of `buffer`; None if they must be parsed.

        They must begin where a request may begin.
        """
        is_short = nbytes <= MAX_HEAD_BYTES
        fields, end, body = bytes(buffer[: nbytes if is_short else MAX_HEAD_BYTES]).partition(_HEAD_END)
        before, _, rest = fields.partition(_FIELD_END)
        length, _, after = rest.partition(_LINE_END)
        key = before, after
        head = self._heads.young.get(key) or self._heads.get(key)
        if not is_short and head is not None:
            body = bytes(buffer[len(fields) + len(end) : nbytes])
        if head is None or not end or length != b"%d" % len(body):
            self._missed = key if end else None
            is_new = head is None and end
            return self._of_another_caller(key, length, buffer[len(fields) + len(end) : nbytes]) if is_new else None
        return head, body

    def recall_begun(self, data: memoryview) -> tuple[ParsedHead, bytes, int] | None:
        """The head, the bytes of the body that came with it, and the body's declared size, if more of it is to come.

        Call it right after `recall` has returned None for `data`. None if it must be parsed.
        """
        key = self._missed
        head = None if key is None else self._heads.young.get(key)  # where `recall` has left it
        if key is None or head is None:
            return None
        read = bytes(data[:MAX_HEAD_BYTES])
        end = read.find(_HEAD_END) + len(_HEAD_END)
        length = read[len(key[0]) + len(_FIELD_END) : end].partition(_LINE_END)[0]
        declared = int(length) if length.isdigit() and len(length) <= _MOST_DIGITS else 0
        if declared <= len(data) - end or length != b"%d" % declared:
            return None
        return head, bytes(data[end:]), declared

    def remember(self, data: memoryview, head: ParsedHead, body_bytes: int) -> None:
        """Keep `head` if it comes a second time. It was parsed from `data`, for which `recall` has just returned None.

        `body_bytes`: the size of the body in `data`, which holds nothing else after the head.
        """
        key = self._missed
        if key is None:
            return
        repeats = self._came_before(key)
        alike, credential = _without_credential(key)
        is_alike = credential and self._came_before(alike)
        if (repeats or is_alike) and _is_plain(data[: len(data) - body_bytes], head):
            if repeats:
                self._keep(key, head)
            if is_alike and head.presents(credential, _place_in(alike)):
                self._alike.put(alike, head)

    def _keep(self, key: _Key, head: ParsedHead) -> None:
        head.repeats = True
        self._heads.put(key, head)

    def _came_before(self, key: _Key | _Alike) -> bool:
        """Return whether a head with this key came before, and remember that it has."""
        mark = hash(key)
        came_before = self._once.get(mark) is not None
        if not came_before:
            self._once.put(mark, True)
        return came_before

    def _of_another_caller(self, key: _Key, length: bytes, body: memoryview) -> tuple[ParsedHead, bytes] | None:
        """The same as `recall` for a new head: it is made of one that differs only in its credential, if there is."""
        alike, credential = _without_credential(key)
        head = self._alike.get(alike) if credential else None
        if head is None or length != b"%d" % len(body):
            return None
        head = head.with_credential(credential, _place_in(alike))
        if self._came_before(key):
            self._keep(key, head)
        return head, bytes(body)

    def drop(self) -> None:
        """Drop everything."""
        self._heads.clear()
        self._alike.clear()
        self._once.clear()


def _weigh(key: _Key, _head: ParsedHead) -> int:
    return _HEAD_BYTES + len(key[0]) + len(key[1])


def _without_credential(key: _Key) -> tuple[_Alike, bytes]:
    """Cut the first of our keys out of a head, and return it; b"" if there is none before the length."""
    before, after = key
    before, prefix, rest = before.partition(_CREDENTIAL_PREFIX)
    secret, _, between = rest.partition(_LINE_END)
    is_plain = prefix and not secret.translate(None, _CREDENTIAL_BYTES)
    return (before, len(secret), between, after), prefix + secret if is_plain else b""


def _place_in(alike: _Alike) -> int:
    """The place of the credential's field among all fields. The first line is the request's."""
    return alike[0].count(_LINE_END) - 1


def _is_plain(data: memoryview, head: ParsedHead) -> bool:
    """Return whether the digits that a key lacks are the length's, and only a body so long and a request can follow.

    The parser has refused folded fields and a second length.
    """
    if not head.is_plain or "expect" in head.first:
        return False
    read = bytes(data)
    field, _, rest = read.partition(_FIELD_END)
    digits = rest.partition(_LINE_END)[0]
    has_length = (field + _FIELD_END).lower().endswith(_FIELD)
    return has_length and digits.isdigit() and read.find(_HEAD_END) == len(read) - len(_HEAD_END)
