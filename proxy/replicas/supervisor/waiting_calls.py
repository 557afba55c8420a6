"""The calls that wait for one deployment: in turn between groups, first in first out within a group.

A group here is a `turn`: a group's id, or a workspace key's digest. A full queue sheds from its longest group.
Background calls come after all others, in one line, and are never shed.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator

from proxy.replicas.supervisor.platform_call import CallId, PlatformCall

_Line = OrderedDict[CallId, PlatformCall]


class WaitingCalls:
    """A fair queue. `join`, `leave` and `pop` cost the same however many calls wait."""

    def __init__(self) -> None:
        self._background: _Line = OrderedDict()
        self._lines: OrderedDict[str, _Line] = OrderedDict()  # by turn; the first one is next
        self._sheddable: dict[str, int] = {}  # by turn: calls that a full queue may shed
        self.sheddable = 0

    def __bool__(self) -> bool:
        return bool(self._lines or self._background)

    def __contains__(self, call: PlatformCall) -> bool:
        return call.id in (self._background if call.request.background else self._lines.get(call.request.turn, ()))

    def __iter__(self) -> Iterator[PlatformCall]:
        """Yield calls ordered by turn, and in order within each turn."""
        for line in (*self._lines.values(), self._background):
            yield from line.values()

    def join(self, call: PlatformCall) -> None:
        """Wait at the end of its turn; at the front if it has waited before."""
        background = call.request.background
        line = self._background if background else self._lines.setdefault(call.request.turn, OrderedDict())
        line[call.id] = call
        if call.asked_before:
            line.move_to_end(call.id, last=False)
        if not background and not call.was_parked:
            self._count(call, 1)

    def leave(self, call: PlatformCall) -> None:
        if call.request.background:
            del self._background[call.id]
            return
        line = self._lines[call.request.turn]
        del line[call.id]
        if not line:
            del self._lines[call.request.turn]
        if not call.was_parked:
            self._count(call, -1)

    def park(self, call: PlatformCall) -> None:
        """The waiting call is parked now: a full queue no longer sheds it. Background calls never are shed."""
        if not call.was_parked and not call.request.background:
            call.was_parked = True
            self._count(call, -1)

    def pop(self, suits: Callable[[PlatformCall], bool]) -> PlatformCall | None:
        """Remove and return the next call that suits. Its turn comes again after all others."""
        for turn, line in self._lines.items():
            for call in line.values():
                if suits(call):
                    self._lines.move_to_end(turn)
                    self.leave(call)
                    return call
        return None if self._lines else self._take_background(suits)

    def _take_background(self, suits: Callable[[PlatformCall], bool]) -> PlatformCall | None:
        call = next(filter(suits, self._background.values()), None)
        if call is not None:
            del self._background[call.id]
        return call

    def first_to_shed(self, newcomer: PlatformCall) -> PlatformCall:
        """The newest sheddable call of the longest turn; the newcomer, which waits already, if its turn is as long."""
        longest = max(self._sheddable, key=lambda turn: (self._sheddable[turn], turn == newcomer.request.turn))
        if longest == newcomer.request.turn:
            return newcomer
        return next(call for call in reversed(self._lines[longest].values()) if not call.was_parked)

    def _count(self, call: PlatformCall, more: int) -> None:
        turn = call.request.turn
        self.sheddable += more
        count = self._sheddable.get(turn, 0) + more
        if count:
            self._sheddable[turn] = count
        else:
            del self._sheddable[turn]
