"""A control plane with a store, a workspace that may train, and a client for its uploads."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.control.plane import ControlPlane, running_plane
from tests.control.training import create_project, enable
from tests.s3_client import S3

CREDENTIALS = "/v1/blobs/credentials/train"


class Place:
    """A plane, the directory of its store, and what tests do there."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.plane = plane
        self.directory = directory

    async def client(self, **more: Any) -> S3:
        """A client with keys for a new upload."""
        return S3(self.plane.client.session, (await self.plane.get(CREDENTIALS, **more)).ok())

    @property
    def stored(self) -> list[bytes]:
        """The content of all files in the store, the smallest first."""
        return sorted((path.read_bytes() for path in self.directory.rglob("*") if path.is_file()), key=len)

    async def create(self, *clients: S3, **more: Any) -> Any:
        """The answer to the creation of a job with these uploads."""
        path = f"/v1/training_projects/{self.project}/jobs"
        artifacts = [dict(zip(("s3_bucket", "s3_key"), one.path[1:].split("/"), strict=True)) for one in clients]
        runtime = {"start_commands": ["true"], "artifacts": artifacts}
        return await self.plane.post(path, {"training_job": {"compute": {"cpu_count": 1}, "runtime": runtime}}, **more)

    project = ""


@pytest.fixture
async def place(database_url: str, tmp_path: Path) -> AsyncIterator[Place]:
    """The place, on each kind of database."""
    async with running_plane(database_url, checkpoint_store=f"file://{tmp_path}/store") as plane:
        await enable(plane)
        place = Place(plane, tmp_path / "store")
        place.project = (await create_project(plane))["id"]
        yield place


@pytest.fixture
async def sqlite_place(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Place]:
    """The same, on SQLite only."""
    async with running_plane(sqlite_url, checkpoint_store=f"file://{tmp_path}/store") as plane:
        await enable(plane)
        place = Place(plane, tmp_path / "store")
        place.project = (await create_project(plane))["id"]
        yield place
