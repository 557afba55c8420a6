"""Seals a vendor's own block in text that a caller of another dialect keeps and returns with its next turn.

A sealed text goes where the caller's dialect has an opaque member: the signature of a thinking block, the
`encrypted_content` of a reasoning item, the `data` of `reasoning_details`. Its MAC says who sealed it and for whom.

See docs/reference/inference.md#reasoning.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from hmac import compare_digest, digest
from typing import Any

import orjson

from policy.endpoints import Target
from proxy.dialects.middle.request import ConversationTurn, Reasoning
from proxy.dialects.upstream_request import origin_of
from proxy.errors import UntranslatableError

Json = dict[str, Any]
BlockReaders = Mapping[str, Callable[[Json], Json | None]]
"""Functions by dialect that find the members of a block that a vendor may get back; None for no reasoning."""

MARK = "tollgate."
"""Begins every sealed text, of any version. No vendor's signature begins like it."""
VERSION = "2"
FOREIGN_REASONING = "the turn began without this vendor's reasoning"
"""Reason why a vendor that requires its own blocks back is asked not to think."""
FORGED = "is not what the gateway sealed: its MAC is wrong. Return sealed reasoning exactly as it came, or leave it out"
_PARTS = 4
"""Number of parts after the key's id: place, dialect, MAC, block."""
_TAG_BYTES = 8
_MAC_BYTES = 16
_PURPOSE = b"tollgate reasoning seal\0"
_KEY_ID_PURPOSE = b"tollgate reasoning seal, id of the key"
_MAX_DERIVED = 4_096


class SealKeys:
    """The keys of a process, with which it seals and opens.

    `keys`: those of TOLLGATE_SECRET_KEY, which may change; the first one seals, any opens. `base_urls`: by provider,
    where the operator sets them.
    """

    __slots__ = ("_base_urls", "_basis", "_by_id", "_secret_keys")

    def __init__(self, keys: Sequence[bytes], base_urls: Mapping[str, str]) -> None:
        self._base_urls = base_urls
        self._secret_keys = keys
        self._basis: Sequence[bytes] = ()
        self._by_id: dict[str, bytes] = {}

    @property
    def newest_id(self) -> str:
        return next(iter(self._keys()))

    def place(self, target: Target) -> str:
        """The provider and the origin that a target is asked at; of a platform model its id, for its replicas move."""
        url = target.base_url or self._base_urls.get(target.provider)
        return f"{target.provider} {origin_of(url) if url else target.model_id}"

    def key(self, key_id: str, workspace_id: str) -> bytes | None:
        """The workspace's own key; None for an unknown key id."""
        key = self._keys().get(key_id)
        return None if key is None else _workspace_seal_key(key, workspace_id)

    def _keys(self) -> dict[str, bytes]:
        """The keys by their ids, the first one first."""
        present = self._secret_keys[:]
        if present != self._basis:
            self._by_id = {_tag(key, _KEY_ID_PURPOSE): key for key in present}
            self._basis = present
        return self._by_id


class Seals:
    """Seals and opens the reasoning of one call. `place`: the provider and the origin that its target is asked at."""

    __slots__ = ("_keys", "_place", "_readers", "_workspace_id", "left_out")

    def __init__(self, keys: SealKeys, workspace_id: str, place: str, readers: BlockReaders) -> None:
        self._keys = keys
        self._workspace_id = workspace_id
        self._place = place
        self._readers = readers
        self.left_out: list[str] = []
        """Fields of seals that could not be opened, for the header that tells them."""

    def seal(self, dialect: str, native: Json) -> str:
        """`native`, a block of `dialect`, as text."""
        key_id = self._keys.newest_id
        key = self._keys.key(key_id, self._workspace_id)
        assert key is not None  # the newest one is known
        sealed = f"{key_id}.{self._place_tag(key)}.{dialect}"
        block = urlsafe_b64encode(orjson.dumps(native)).decode().rstrip("=")
        return f"{MARK}{VERSION}.{sealed}.{_mac(key, sealed, block)}.{block}"

    def open(self, text: str, field: str) -> tuple[str, Json] | None:
        """The dialect and the block of a sealed text; None, and noted, if another one must have sealed it.

        Another one: an older version, a key that is not known, another workspace, provider or origin. Raises
        `UntranslatableError` for a text that was changed.
        """
        version, _, rest = text.removeprefix(MARK).partition(".")
        key_id, _, rest = rest.partition(".")
        key = self._keys.key(key_id, self._workspace_id) if version == VERSION else None
        if key is None:
            self._note(field)
            return None
        parts = rest.split(".", _PARTS)
        if len(parts) != _PARTS:
            raise UntranslatableError(field, FORGED)
        place, dialect, mac, block = parts
        if not _is_equal(place, self._place_tag(key)):
            self._note(field)
            return None
        if not _is_equal(mac, _mac(key, f"{key_id}.{place}.{dialect}", block)):
            raise UntranslatableError(field, FORGED)
        native = orjson.loads(urlsafe_b64decode(block + "=" * (-len(block) % 4)))
        read = self._readers.get(dialect)
        readable = None if read is None else read(native)
        if readable is None:
            self._note(field)
            return None
        return dialect, readable

    def native(self, dialect: str, text: str, field: str) -> Json | None:
        """The block of a sealed text if it is one of `dialect`; None, and noted, for any other. Raises as `open`."""
        opened = self.open(text, field)
        if opened is None or opened[0] != dialect:
            if opened is not None:
                self._note(field)
            return None
        return opened[1]

    def _note(self, field: str) -> None:
        self.left_out.append(f"{field} (reasoning)")

    def _place_tag(self, key: bytes) -> str:
        """Stands for the place, which callers must not learn."""
        return _tag(key, self._place.encode("utf-8", "surrogatepass"))


@lru_cache(_MAX_DERIVED)
def _workspace_seal_key(key: bytes, workspace_id: str) -> bytes:
    return digest(key, _PURPOSE + workspace_id.encode(), "sha256")


def _tag(key: bytes, text: bytes) -> str:
    return digest(key, text, "sha256")[:_TAG_BYTES].hex()


def _mac(key: bytes, sealed: str, block: str) -> str:
    text = f"{sealed}.{block}".encode("utf-8", "surrogatepass")
    return digest(key, text, "sha256")[:_MAC_BYTES].hex()


def _is_equal(mac: str, computed: str) -> bool:
    """Compare in constant time."""
    return compare_digest(mac.encode("utf-8", "surrogatepass"), computed.encode())


def open_reasoning(turns: Iterable[ConversationTurn], dialect: str, seals: Seals) -> None:
    """Open what `dialect` can take back of the sealed reasoning of a caller's turns. Raises as `Seals.open`."""
    for part in (part for turn in turns for part in turn.parts if isinstance(part, Reasoning) and part.sealed):
        part.native = seals.native(dialect, part.sealed, part.field)
        part.dialect = dialect if part.native is not None else ""
        part.sealed = ""


def has_reasoning(body: Json) -> bool:
    """Return whether the turns of a body hold reasoning, which may be sealed."""
    items = body.get("input")
    if isinstance(items, list):
        return any(isinstance(item, dict) and item.get("type") == "reasoning" for item in items)
    turns = body.get("messages")
    return isinstance(turns, list) and any(map(_thinks, turns))


def _thinks(turn: object) -> bool:
    if not isinstance(turn, dict):
        return False
    if "reasoning_details" in turn:
        return True
    content = turn.get("content")
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") in ("thinking", "redacted_thinking") for block in content
    )
