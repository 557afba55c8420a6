"""Links to the files of checkpoints: whoever has one may read that one file until it expires, without credentials.

A link is sealed, so its reader learns nothing from it, and bound to the workspace, the checkpoint and its very content.
It opens nothing by itself: what it names is looked up like any file.

See docs/reference/training.md#checkpoints.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from control.errors import CheckpointFileNotFoundError
from control.records.ids import new_nonce
from control.resources.training.errors import LinkExpiredError
from policy.sealing import TokenSealer

VALID_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Link:
    """The file that a link opens, and until when."""

    workspace_id: str
    checkpoint_id: str
    location: str
    path: str
    expires_at_ms: int


class LinkSealer:
    """Makes the tokens of links, and reads them."""

    def __init__(self, secret_keys: Sequence[bytes]) -> None:
        self._tokens = TokenSealer(secret_keys, "tollgate checkpoint link")

    def seal(self, link: Link) -> str:
        values = [link.workspace_id, link.checkpoint_id, link.location, link.path, link.expires_at_ms]
        return self._tokens.seal(values, new_nonce())

    def open(self, token: str, now_ms: int) -> Link:
        """Open a token. Raises CheckpointFileNotFoundError unless it was sealed here, and LinkExpiredError."""
        values = self._tokens.open(token)
        if values is None:
            raise CheckpointFileNotFoundError
        link = Link(*values)
        if now_ms >= link.expires_at_ms:
            raise LinkExpiredError
        return link
