"""A process that outlives a killed launcher and ends what its replicas had started themselves.

The kernel kills each replica's first process when the launcher dies, but not that one's children, which may hold a
GPU's memory. The guard learns of process groups through a pipe; when the pipe closes, it kills those that are left.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterable


class ProcessGuard:
    """The launcher's side: starts the guard and tells it which groups exist."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: int) -> None:
        self._process = process
        self._pipe = pipe

    @classmethod
    async def start(cls) -> "ProcessGuard":
        """Start it in a session of its own: no signal for the launcher's group reaches it. `-P` as in `tollgate up`."""
        read_end, write_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "launcher.edges.process_guard"),
                stdin=read_end,
                start_new_session=True,
                env={},
            )
        finally:
            os.close(read_end)
        return cls(process, write_end)

    def watch(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._tell(f"-{group}\n")

    async def close(self) -> None:
        """Let it end; nothing is left to guard."""
        os.close(self._pipe)
        await self._process.wait()

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed; the kernel still ends the replicas themselves
            os.write(self._pipe, line.encode())


def groups_left(lines: Iterable[str]) -> set[int]:
    """The groups that were named and not forgotten. A line without its end was cut by the launcher's death."""
    groups: set[int] = set()
    for line in lines:
        if line.endswith("\n"):
            (groups.add if line.startswith("+") else groups.discard)(int(line[1:]))
    return groups


def main() -> None:
    for group in groups_left(sys.stdin):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
