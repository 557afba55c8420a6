"""Faults of a policy file. The message names the line, the field and what is allowed there."""

from collections.abc import Sequence

from commands.errors import ManagementError

_SHOWN = 2


class PolicyFileError(ManagementError):
    """The policy file breaks a rule. The message has at most three lines."""

    def __init__(self, problems: Sequence[str]) -> None:
        more = len(problems) - _SHOWN
        lines = [*problems[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        super().__init__("\n".join(lines))
        self.problems = tuple(problems)
