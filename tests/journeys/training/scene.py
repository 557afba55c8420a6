"""The training journeys' scene: a workspace that may train, jobs by raw JSON, and what can be read of them."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.journeys.product import OperatorClient, Product
from tests.waiting import eventually

TRAIN = f"{sys.executable} {Path(__file__).with_name('train.py')}"
ENDED = ("COMPLETED", "FAILED", "DEPLOY_FAILED", "STOPPED")
LINES_AT_ONCE = 1000
SEARCH = "/v1/training_jobs/search"


class Training:
    """One workspace's training, in a project of its own."""

    def __init__(self, operator: OperatorClient, product: Product, project: str) -> None:
        self.operator = operator
        self.product = product
        self.project = project

    @classmethod
    async def begin(cls, operator: OperatorClient, product: Product, name: str) -> "Training":
        answer = await operator.call("POST", "/v1/training_projects", {"training_project": {"name": name}})
        return cls(operator, product, answer["training_project"]["id"])

    @property
    def jobs(self) -> str:
        return f"/v1/training_projects/{self.project}/jobs"

    async def create(self, *commands: str, **changes: Any) -> "Job":
        """Create a job of these start commands. `runtime` and `compute` in `changes` add to the defaults."""
        body = job_body(*commands, **changes)
        answer = await self.operator.call("POST", self.jobs, {"training_job": body})
        return Job(self, answer["training_job"]["id"])

    async def search(self, **criteria: Any) -> list[Any]:
        return list((await self.operator.call("POST", SEARCH, criteria))["training_jobs"])


def job_body(*commands: str, **changes: Any) -> dict[str, Any]:
    runtime = {"start_commands": list(commands), "environment_variables": {}} | changes.pop("runtime", {})
    compute = {"node_count": 1, "cpu_count": 1, "memory": "256Mi"} | changes.pop("compute", {})
    return {"image": {}, "compute": compute, "runtime": runtime} | changes


class Job:
    """One job, as its owner sees it."""

    def __init__(self, training: Training, id: str) -> None:
        self.training = training
        self.id = id
        self.path = f"{training.jobs}/{id}"

    async def read(self) -> Any:
        return (await self.training.operator.call("GET", self.path))["training_job"]

    async def status(self) -> str:
        return str((await self.read())["current_status"]).removeprefix("TRAINING_JOB_")

    async def until(self, *statuses: str, within_s: float = 30) -> Any:
        """The job, once it has one of these statuses. Fails at once if it has ended otherwise."""

        async def look() -> Any:
            job = await self.read()
            status = job["current_status"].removeprefix("TRAINING_JOB_")
            if status in statuses:
                return job
            assert status not in ENDED, f"{status} instead of {statuses}: {job}\n{await self.log()}"
            return None

        return await eventually(look, lambda: f"{statuses}\n{self.training.product.log_tail()}", within_s, 0.05)

    async def log(self) -> str:
        """The log's first 1000 lines, oldest first."""
        return "\n".join(await self.lines())

    async def lines(self, text: str | None = None) -> list[str]:
        """The first 1000 lines that contain `text`, oldest first: a job on a slow machine may write many before it."""
        query = {"direction": "asc", "limit": 1000, "search_pattern": text}
        entries = (await self.training.operator.call("POST", f"{self.path}/logs", query))["logs"]
        return [line["message"] for line in entries]

    async def all_lines(self, step_ms: int) -> list[str]:
        """The whole log, oldest first, by moving the window to the last millisecond shown (0) or behind it (1)."""
        entries: dict[tuple[str, str], str] = {}
        start_ms = 0
        while True:
            query = {"direction": "asc", "limit": LINES_AT_ONCE, "start_epoch_millis": start_ms}
            page = (await self.training.operator.call("POST", f"{self.path}/logs", query))["logs"]
            entries |= {(line["timestamp"], line["message"]): line["message"] for line in page}
            if len(page) < LINES_AT_ONCE:
                return list(entries.values())
            start_ms = int(page[-1]["timestamp"]) // 1_000_000 + step_ms

    async def logged(self, text: str) -> str:
        """The log, once it contains `text`."""

        async def look() -> str | None:
            return await self.log() if await self.lines(text) else None

        return str(await eventually(look, lambda: f"{text!r} in the log\n{self.training.product.log_tail()}", 30, 0.05))

    async def points(self, name: str = "loss") -> Sequence[Any]:
        """The points of one metric, oldest first."""
        metrics = (await self.training.operator.call("GET", f"{self.path}/metrics", name=name))["metrics"]
        return metrics[0]["points"] if metrics else ()

    async def checkpoints(self) -> list[Any]:
        answer = await self.training.operator.call("GET", f"{self.path}/checkpoints")
        assert answer["training_job"]["id"] == self.id
        return list(answer["checkpoints"])

    async def synced(self, enough: Callable[[list[Any]], bool]) -> list[Any]:
        """The checkpoints, once those that are COMPLETE are enough."""

        async def look() -> list[Any] | None:
            checkpoints = [one for one in await self.checkpoints() if one["sync_status"] == "COMPLETE"]
            return checkpoints if enough(checkpoints) else None

        return list(await eventually(look, lambda: f"synced\n{self.training.product.log_tail()}", 30, 0.05))

    async def stop(self) -> Any:
        return (await self.training.operator.call("POST", f"{self.path}/stop"))["training_job"]

    async def recreate(self) -> "Job":
        answer = (await self.training.operator.call("POST", f"{self.path}/recreate"))["training_job"]
        return Job(self.training, answer["id"])
