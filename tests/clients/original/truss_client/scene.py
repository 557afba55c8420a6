"""Jobs that `truss` reads and changes, made without it, and the truth about them."""

from dataclasses import dataclass
from typing import Any

from tests.clients.original.place import Place, until

ENDED = ("TRAINING_JOB_STOPPED", "TRAINING_JOB_COMPLETED", "TRAINING_JOB_FAILED", "TRAINING_JOB_DEPLOY_FAILED")
RUNNING = "TRAINING_JOB_RUNNING"
SAYS = "begun"
"""The first line of each job."""
WEIGHTS = "weights"
"""The content of the one file of the checkpoint `step-1`."""
SAVE = (
    'mkdir "$TOLLGATE_CHECKPOINT_DIR/step-1"',
    f'printf {WEIGHTS} > "$TOLLGATE_CHECKPOINT_DIR/step-1/{WEIGHTS}.bin"',
)


MODEL = "acme/gated-tiny"
"""A model of the hub, which asks for a token."""
HUB_TOKEN = "hf_of-the-gated-model"
SHOWN = "the model's own"
"""The content of its file `config.txt`."""
MODEL_FILES = {"config.txt": f"{SHOWN}\n".encode(), "parts/model.safetensors": bytes(2_000_000), "README.md": b"read"}

KEEPING = {"checkpointing_config": {"enabled": True}, "cache_config": {"enabled": True}}
"""Has the files of a job kept: its checkpoints, and its project's cache."""


@dataclass(frozen=True)
class Job:
    """One training job."""

    place: Place
    project: str
    id: str

    @property
    def path(self) -> str:
        return f"/v1/training_projects/{self.project}/jobs/{self.id}"

    @property
    def where(self) -> dict[str, str]:
        """The arguments by which `truss` names it."""
        return {"project_id": self.project, "job_id": self.id}

    def read(self) -> Any:
        return self.place.control("GET", self.path)["training_job"]

    def status(self) -> str:
        return str(self.read()["current_status"])

    def until(self, *statuses: str) -> None:
        until(lambda: self.status() in statuses, f"{self.id} is one of {statuses}")

    def lines(self) -> list[str]:
        """The messages of its log, oldest first; at most 1000."""
        body = {"direction": "asc", "limit": 1000}
        return [line["message"] for line in self.place.control("POST", f"{self.path}/logs", body)["logs"]]

    def checkpoints(self) -> list[str]:
        """The ids of its checkpoints."""
        return [one["checkpoint_id"] for one in self.place.control("GET", f"{self.path}/checkpoints")["checkpoints"]]

    def stop(self) -> None:
        self.place.control("POST", f"{self.path}/stop", {})
        self.until(*ENDED)


@dataclass(frozen=True)
class Scene:
    """A project with a job that ended and left a checkpoint, one that runs, and one that waits for its end."""

    place: Place
    project: str
    name: str
    ended: Job
    running: Job
    queue_job: Job

    @classmethod
    def create(cls, place: Place, name: str) -> "Scene":
        body = {"training_project": {"name": name}}
        project = place.control("POST", "/v1/training_projects", body)["training_project"]["id"]
        ended = new_job(place, project, *SAVE, runtime=KEEPING)
        ended.until(*ENDED)
        until(ended.checkpoints, "its checkpoint")
        summary = f"/v1/training_projects/{project}/cache/summary"
        until(lambda: place.control.status(summary) == 200, "the summary of the cache")
        until(lambda: ended.read()["checkpoint_sync_status"] == "COMPLETED", "the checkpoint is stored")
        session = {"trigger": "on_startup", "timeout_minutes": 10}
        running = new_job(place, project, "sleep 600", interactive_session=session)
        running.until(RUNNING)
        until(running.lines, "its log")
        until(lambda: place.control("GET", f"{running.path}/auth_codes")["auth_codes"], "its session")
        queue_job = new_job(place, project, compute={"cpu_count": 2})
        queue_job.until("TRAINING_JOB_PENDING")
        return cls(place, project, name, ended, running, queue_job)


def new_job(place: Place, project: str, *commands: str, **changes: Any) -> Job:
    """Create a job that says that it has begun and runs these commands."""
    runtime = {"start_commands": [f"echo {SAYS}", *commands]} | changes.pop("runtime", {})
    compute = {"cpu_count": 1, "memory": "256Mi"} | changes.pop("compute", {})
    body = {"training_job": {"compute": compute, "runtime": runtime} | changes}
    answer = place.control("POST", f"/v1/training_projects/{project}/jobs", body)
    return Job(place, project, answer["training_job"]["id"])
