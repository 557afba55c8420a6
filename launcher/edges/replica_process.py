"""One replica's process: in a process group of its own, killed by the kernel when the launcher dies.

Its output arrives through one pipe that is always read, so the replica never waits for whoever reads its log.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence

from runtime.child_process import tie_to_parent
from runtime.setting_names import PREFIX

OUTPUT_PATIENCE_S = 1.0
"""The time that output is read after the process has ended, in case another process holds its pipe."""

Receive = Callable[[bytes], None]


class ReplicaProcess:
    """A running replica. Signals go to its whole process group: a server's own children are meant too."""

    def __init__(self, process: asyncio.subprocess.Process, output: "_Output", pipe: asyncio.ReadTransport) -> None:
        self._process = process
        self._output = output
        self._pipe = pipe

    @classmethod
    async def start(cls, argv: Sequence[str], environment: Mapping[str, str], receive: Receive) -> "ReplicaProcess":
        """Start it. OSError if the program cannot be run."""
        read_end, write_end = os.pipe()
        loop = asyncio.get_running_loop()
        output = _Output(receive)
        pipe, _ = await loop.connect_read_pipe(lambda: output, os.fdopen(read_end, "rb", 0))
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=dict(environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                process_group=0,
                preexec_fn=tie_to_parent(),
            )
        except BaseException:
            pipe.close()
            raise
        finally:
            os.close(write_end)
        return cls(process, output, pipe)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Wait until it has ended and its output is read; end what it left running in its group."""
        status = await self._process.wait()
        self._signal_group(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OUTPUT_PATIENCE_S):
                await asyncio.shield(self._output.has_ended)
        self._pipe.close()
        return status

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._signal_group(number)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # nobody is left in it
            os.killpg(self._process.pid, number)


class _Output(asyncio.Protocol):
    """Hands on what arrives through the pipe."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.has_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.has_ended.done():
            self.has_ended.set_result(None)


def environment_for(environment: Mapping[str, str], port: int) -> dict[str, str]:
    """Return a replica's environment: ours without any setting of Tollgate, which may be secret, and its port."""
    inherited = {name: value for name, value in environment.items() if not name.startswith(PREFIX)}
    return {"PYTHONUNBUFFERED": "1"} | inherited | {"PORT": str(port)}
