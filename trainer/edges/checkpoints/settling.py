"""The rule of complete checkpoints: nothing changed in them for a while, or the job marked them. Pure.

See docs/reference/training.md#checkpoints.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from trainer.edges.checkpoints.directory import CheckpointSnapshot

QUIET_S = 2.0
_CLOCK_TICK_NS = 100_000_000
"""The kernel's file times may be as coarse: changes within one tick look alike."""


@dataclass(frozen=True, slots=True)
class _Look:
    version: str
    since_s: float


class Settling:
    """Hears of all checkpoints at each look, and says which are complete. Both clocks are the caller's."""

    def __init__(self) -> None:
        self._looks: dict[str, _Look] = {}

    def look(
        self, snapshots: Iterable[CheckpointSnapshot], now_s: float, now_ns: int
    ) -> tuple[list[CheckpointSnapshot], list[CheckpointSnapshot]]:
        """(complete, not yet complete). `now_s`: a clock that never jumps; `now_ns`: the clock of file times."""
        looks = dict[str, _Look]()
        complete = list[CheckpointSnapshot]()
        open_ones = list[CheckpointSnapshot]()
        for snapshot in snapshots:
            before = self._looks.get(snapshot.name)
            version = snapshot.version
            is_same = before is not None and before.version == version
            state = before if before is not None and is_same else _Look(version, now_s)
            looks[snapshot.name] = state
            is_marked = snapshot.is_marked and abs(now_ns - snapshot.changed_ns) > _CLOCK_TICK_NS
            (complete if is_marked or now_s - state.since_s >= QUIET_S else open_ones).append(snapshot)
        self._looks = looks
        return complete, open_ones
