"""Processes besides the product's that chaos acts on: replicas that are killed and started again, and Redis' log."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from runtime.child_process import tie_to_parent
from tests.journeys.async_requests.chaos_faults import AttemptSeen
from tests.ports import own_port

SAMPLE_S = 0.05


class Replica:
    """A scripted model server on a port of its own, which it keeps when it is started again."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._port = own_port()
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        program = (sys.executable, "-m", "tests.journeys.async_requests.chaos_replica", str(self._port), str(self._log))
        tie = tie_to_parent()
        self._process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, preexec_fn=tie)  # noqa: PLW1509
        assert self._process.stdout is not None
        with self._process.stdout:
            assert self._process.stdout.readline() == "listening\n"

    def kill(self) -> None:
        """Kill the replica: its attempts end now."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None
        with self._log.open("a") as log:
            log.write(json.dumps({"event": "died", "at": time.time()}) + "\n")

    def attempts(self) -> list[AttemptSeen]:
        """All attempts that reached it."""
        all_attempts: list[AttemptSeen] = []
        running: dict[tuple[str, int], deque[AttemptSeen]] = {}
        for note in map(json.loads, self._log.read_text().splitlines()):
            if note["event"] == "died":
                for one in (one for ones in running.values() for one in ones):
                    one.ended = note["at"]
                    one.how = "died"
                running.clear()
                continue
            key = (note["id"], note["attempt"])
            if note["event"] == "begin":
                all_attempts.append(AttemptSeen(*key, note["at"]))
                running.setdefault(key, deque()).append(all_attempts[-1])
            else:
                one = running[key].popleft()
                one.ended = note["at"]
                one.how = note["how"]
                one.n = note.get("n")
        return all_attempts


class RedisLog:
    """Redis' append-only file. `cut` takes its last moments away, as a power failure would."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._sizes: deque[tuple[float, Path, int, int]] = deque(maxlen=int(5 / SAMPLE_S))

    async def watch(self) -> None:
        """Remember its size until cancelled."""
        while True:
            with contextlib.suppress(FileNotFoundError, ValueError):
                path = self._path()
                stat = path.stat()
                self._sizes.append((time.time(), path, stat.st_ino, stat.st_size))
            await asyncio.sleep(SAMPLE_S)

    def cut(self, last_s: float) -> int:
        """Forget what was written in the last `last_s`, while Redis does not run. Returns how many bytes that is."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            path = self._path()
            since = time.time() - last_s
            stat = path.stat()
            sizes = [size for at, *file, size in self._sizes if file == [path, stat.st_ino] and at <= since]
            if sizes and sizes[-1] < stat.st_size:
                os.truncate(path, sizes[-1])
                return stat.st_size - sizes[-1]
        return 0

    def _path(self) -> Path:
        """The file that grows: Redis 7 has a folder of them."""
        one = self._data / "appendonly.aof"
        return one if one.exists() else max((self._data / "appendonlydir").glob("*.incr.aof"))
