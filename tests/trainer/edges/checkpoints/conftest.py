from pathlib import Path

import pytest

from tests.trainer.edges.checkpoints.job import Job
from trainer.edges.checkpoints import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store((tmp_path / "store").as_uri())


@pytest.fixture
def job(tmp_path: Path, store: Store) -> Job:
    return Job(tmp_path / "job" / "checkpoints", store)
