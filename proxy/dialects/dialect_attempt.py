"""The form in which a call is put to its target: in which dialect, and translated or not.

A value. `registry.py` makes it; `dispatch` uses the first one, and the next where a target turns out not to speak the
dialect.
"""

from dataclasses import dataclass, field
from typing import Any

from proxy.dialects.middle.left_out import HEADER, header_value
from proxy.dialects.middle.request import Request
from proxy.dialects.middle.sealing import Seals


@dataclass(slots=True)
class DialectAttempt:
    """One way to put a call to its target. Of a call that passes unchanged, shared by all such calls."""

    dialect: str
    """The dialect in which the target is asked."""
    caller_dialect: str
    untried: tuple[str, ...] = ()
    """The dialects to ask in next, if the target has no such path."""
    request: Request | None = None
    """The call, if it is translated. Without turns once it is sent: an answer may take minutes."""
    json: dict[str, Any] | None = None
    """The translated body; None if the caller's own passes, and once it is sent."""
    reasoning_off: str = ""
    """Reason why the caller's own body goes without the reasoning that it asks for; empty if it keeps it."""
    left_out: list[str] = field(default_factory=list)
    """The members that the caller's own body goes without, besides."""
    seals: Seals | None = None
    """Seals the reasoning in the answer, if it is translated."""
    is_fallback: bool = False
    """True if the target has already refused another dialect's path in this call."""
    asks_usage: bool = True
    """True to ask for a stream's usage where the caller does not. False once the target refused that in this call."""

    @property
    def is_translated(self) -> bool:
        return self.request is not None

    @property
    def is_plain(self) -> bool:
        """True if the caller's own body passes, and nothing is left to be learned of the target."""
        return self.request is None and self.json is None and not self.untried and self.asks_usage

    @property
    def notice(self) -> str:
        """Header lines that tell the caller what the translation left out, each with CRLF; mostly none.

        A whole answer may add to them before its head leaves.
        """
        request = self.request
        off = self.reasoning_off if request is None else request.reasoning_off
        lines = f'x-tollgate-reasoning: off; reason="{off}"\r\n' if off else ""
        left_out = self.left_out if request is None else request.left_out
        return f"{lines}{HEADER}: {header_value(left_out)}\r\n" if left_out else lines

    def release(self) -> None:
        """Free what only the request needed."""
        self.json = None
        if self.request is not None:
            self.request.turns = []
