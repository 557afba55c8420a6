"""The input of a runner: one JSON object with the members of `Launch`. Starts runners.

See docs/reference/training.md#what-a-job-sees.
"""

import json
import os
import sys
from typing import NamedTuple

_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from trainer.runner.__main__ import main; main()"
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Launch(NamedTuple):
    """The settings of a node. The directories exist. `control_directory` is the runner's own; jobs may not read it."""

    name: str
    """Unique among the nodes of this machine; names its cgroup."""
    control_directory: str
    working_directory: str
    commands: list[str]
    environment: dict[str, str]
    """All of it: nothing is added."""
    secrets: list[str]
    """The secrets to mask in the output."""
    memory_mib: int
    millicpu: int
    grace_s: float
    """The time from SIGTERM to SIGKILL."""
    cpus: list[int] | None = None
    """The processors to run on where there is no cgroup to limit the CPU; None: any."""
    owner: list[int] | None = None
    """The user and group that the commands run as; None: the runner's."""
    keep_s: float | None = None
    """The time that a failed node is kept for an interactive session; None: not at all."""
    notice: str = ""
    """A line of Tollgate's own before the node's output; empty: none."""

    def __repr__(self) -> str:
        return f"Launch({self.name!r})"

    def to_json(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "Launch":
        """The inverse of `to_json`. Raises ValueError or TypeError if it is not whole."""
        return cls(**json.loads(text))


def runner_argv() -> list[str]:
    """The command that starts a runner. Isolated from the environment and from installed packages, so it starts fast.

    The runner reads its Launch from standard input, writes a line to standard output when the first command has
    started or cannot start, and closes it.
    """
    return [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM, _ROOT]
