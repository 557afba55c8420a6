"""`python scaler.py` of deploy/kubernetes/scaled-model, started as in its pod."""

import asyncio
import contextlib
import sys
from pathlib import Path

from runtime.child_process import tie_to_parent
from tests.contracts.launcher.scripted_kubernetes import ScriptedKubernetes
from tests.ports import own_port

FOLDER = Path(__file__).resolve().parents[3] / "deploy/kubernetes/scaled-model"
SECRET = "0123456789abcdef" * 2


class ScalerProcess:
    """A scaler: its environment, which a test may change before `start`, and its output."""

    def __init__(self, url: str, api_key: str, ids: tuple[str, str], kubernetes: ScriptedKubernetes) -> None:
        hook_port = own_port()
        self.output = ""
        self.environment = {
            "TOLLGATE_URL": url,
            "TOLLGATE_API_KEY": api_key,
            "MODEL_ID": ids[0],
            "DEPLOYMENT_ID": ids[1],
            "WAKE_SECRET": SECRET,
            "HOOK_URL": f"http://127.0.0.1:{hook_port}",
            "HOOK_PORT": str(hook_port),
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(kubernetes.port),
            "SERVICE_ACCOUNT": str(kubernetes.account),
            "TARGET": "model",
            "MAX_REPLICAS": "3",
            "IDLE_TIMEOUT_S": "3",
            "STUCK_S": "2",
        }
        self.process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", "-I", str(FOLDER / "scaler.py")),  # without what is installed here
            env=self.environment,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=tie_to_parent(),
        )
        self._reading = asyncio.create_task(self._read(self.process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self.output += line.decode()

    async def stop(self) -> int:
        """SIGTERM; returns the exit status. Does nothing if it was never started."""
        if self.process is None or self._reading is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        status = await self.process.wait()
        await self._reading
        return status
