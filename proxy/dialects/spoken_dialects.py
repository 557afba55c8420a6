"""The dialects that a target speaks, and the order in which to try them.

Pure, but for what a worker remembers for an hour: in which dialect a target answered that lacked the caller's path, and
what else it refused that we added.

See docs/reference/inference.md#dialects.
"""

from collections import OrderedDict
from collections.abc import Callable

from policy.endpoints import CHAT_COMPLETIONS, PROVIDERS, Target

REMEMBERED_S = 3600.0
MAX_REMEMBERED = 10_000

_Key = tuple[Target, str]


def dialects_of(target: Target, caller_dialect: str) -> tuple[str, ...]:
    """The dialects to ask `target` in, the best first. A provider that only a newer control plane knows speaks
    Chat Completions."""
    rules = PROVIDERS.get(target.provider)
    spoken = rules.dialects if rules is not None else (CHAT_COMPLETIONS,)
    if target.dialects is not None:
        spoken = stated_dialects(target)
    elif rules is not None and rules.may_lack_paths:
        return (caller_dialect, *(dialect for dialect in spoken if dialect != caller_dialect))
    return (caller_dialect,) if caller_dialect in spoken else spoken


def stated_dialects(target: Target) -> tuple[str, ...]:
    """The dialects that policy says the target's server speaks, the preferred one first; empty if it says nothing."""
    return tuple(dialect.lower() for dialect in target.dialects or ())


class SpokenDialects:
    """Remembers which dialect a target answered in, by target and caller's dialect, or by what else it was asked."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: OrderedDict[_Key, tuple[str, float]] = OrderedDict()

    def known(self, target: Target, caller_dialect: str) -> str | None:
        """Return the dialect that `target` answered in within the last hour."""
        if not self._entries:  # as for nearly all workers
            return None
        entry = self._entries.get((target, caller_dialect))
        if entry is None:
            return None
        dialect, until = entry
        if self._clock() >= until:
            self.forget(target, caller_dialect)
            return None
        return dialect

    def remember(self, target: Target, caller_dialect: str, dialect: str) -> None:
        self._entries[target, caller_dialect] = dialect, self._clock() + REMEMBERED_S
        self._entries.move_to_end((target, caller_dialect))
        if len(self._entries) > MAX_REMEMBERED:
            self._entries.popitem(last=False)

    def forget(self, target: Target, caller_dialect: str) -> None:
        self._entries.pop((target, caller_dialect), None)
