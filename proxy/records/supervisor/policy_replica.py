"""The policy replica as the refresher fills it: its version, an update that is being written, where it is kept."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from policy.snapshot import Row


@dataclass(frozen=True, slots=True)
class ReplicaVersion:
    """The revision of control's policy that the replica holds. `epoch` is empty before the first refresh.

    `nonce` identifies the revision's history: control uses it to notice that its database was restored meanwhile.
    """

    epoch: str = ""
    revision: int = 0
    nonce: str = ""

    @property
    def loaded(self) -> bool:
        return bool(self.epoch)


class ReplicaUpdate(Protocol):
    """One answer from control that is being written to the replica. Readers see nothing of it before `commit`."""

    def add(self, rows: Iterable[Row]) -> None: ...

    def commit(self, version: ReplicaVersion) -> None: ...

    def discard(self) -> None: ...


class ReplicaStore(Protocol):
    @property
    def version(self) -> ReplicaVersion: ...

    def begin_update(self, *, reset: bool) -> ReplicaUpdate: ...

    def confirm(self, now_s: float) -> None:
        """Tell all readers that control confirmed this policy at `now_s` (`time.monotonic`). Disk I/O."""
        ...
