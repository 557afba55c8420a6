"""The backend's rules for images, with Ray's answers scripted."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from policy.training.statuses import Outcome, Phase
from runtime.environment import SettingsError
from tests.contracts.training.backends import claimed, report_of, settings
from trainer.backend import JobEnvironment
from trainer.edges.checkpoints import checkpoints_in
from trainer.edges.ray import RayBackend, backend
from trainer.edges.ray.cluster import RayJob, Submission
from trainer.edges.ray.launch import RayLaunch
from trainer.edges.ray.machines import Machine
from trainer.settings import Settings

MACHINE = Machine("abcdef0123456789", "10.0.0.1", {"CPU": 4.0, "memory": 2.0**32})


@dataclass
class Cluster:
    """One machine, and what was submitted to it."""

    submissions: list[Submission] = field(default_factory=list)

    async def machines(self) -> Sequence[Machine]:
        return [MACHINE]

    async def jobs(self) -> Sequence[RayJob]:
        return []

    async def submit(self, submission: Submission) -> None:
        self.submissions.append(submission)


async def nobody_asks(token: str) -> JobEnvironment:
    raise AssertionError("the driver spends the token")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(backend, "RayCluster", lambda address: cluster)
    return cluster


def on_ray(directory: Path, **changes: object) -> RayBackend:
    own: Settings = replace(settings(directory), ray_address="http://ray:8265", **changes)  # type: ignore[arg-type]
    return RayBackend(own, nobody_asks, checkpoints_in(own.checkpoint_store))


@pytest.mark.parametrize(
    ("has_ray_images", "image", "launched"),
    [(True, "python:3.11", "docker.io/library/python:3.11"), (True, None, None), (False, "python:3.11", None)],
)
async def test_driver_is_told_of_an_image_by_its_full_name(
    cluster: Cluster, tmp_path: Path, has_ray_images: bool, image: str | None, launched: str | None
) -> None:
    ray = on_ray(tmp_path, has_ray_images=has_ray_images)

    await ray.start(claimed("true", base_image=image), [MACHINE.host_name])

    (submission,) = cluster.submissions
    assert RayLaunch.from_wire(submission.launch).image == launched


async def test_image_that_is_none_ends_the_job_unsubmitted(cluster: Cluster, tmp_path: Path) -> None:
    ray = on_ray(tmp_path, has_ray_images=True)
    job = claimed("true", base_image="python:3.11;id")

    await ray.start(job, [MACHINE.host_name])

    report = await report_of(ray, job)
    assert report is not None
    assert (report.phase, report.outcome) == (Phase.ENDED, Outcome.DEPLOY_FAILED)
    assert report.error_message == "'python:3.11;id' is not the name of a container image"
    assert cluster.submissions == []


def test_directory_with_characters_of_a_shell_is_refused_where_images_are_used(tmp_path: Path) -> None:
    directory = tmp_path / "a dir"
    with pytest.raises(SettingsError, match="TOLLGATE_TRAINING_DIR: with TOLLGATE_RAY_IMAGES=1"):
        on_ray(directory, has_ray_images=True)


def test_images_are_a_switch_of_the_operator() -> None:
    environ = {"TOLLGATE_INTERNAL_TOKEN": "x" * 32}
    assert not Settings.from_environ(environ).has_ray_images
    assert Settings.from_environ(environ | {"TOLLGATE_RAY_IMAGES": "1"}).has_ray_images
    with pytest.raises(SettingsError, match="TOLLGATE_RAY_IMAGES: expected 1 or 0"):
        Settings.from_environ(environ | {"TOLLGATE_RAY_IMAGES": "yes"})
