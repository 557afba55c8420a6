"""The original's clients read every line of a log once, while a job or a deployment fills it 20 000 lines at a time."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.catalogue import ENVIRONMENT, ROOT
from tests.clients.original.place import Place
from tests.clients.original.run import PYTHON as SDK
from tests.clients.original.run import running
from tests.clients.original.truss_client.run import PYTHON as TRUSS
from tests.clients.original.truss_client.run import settled
from tests.clients.original.truss_client.scene import SAYS, new_job

LINES = [f"line {n}" for n in range(40_000)]
TIMEOUT_S = 200
PRINTING = """
import sys, time
for first in (0, 20_000):
    sys.stdout.write("".join(f"line {n}\\n" for n in range(first, first + 20_000)))
    sys.stdout.flush()
    time.sleep(3)
"""
pytestmark = pytest.mark.skipif(
    not (TRUSS.exists() and SDK.exists()), reason="make .clients/{truss,baseten}/.installed"
)


@dataclass
class Readers:
    """A product, and what starts a reader of its logs."""

    place: Place
    directory: Path
    truss: dict[str, str]

    def start_truss(self, how: str, where: str, id: str) -> "subprocess.Popen[str]":
        module = "tests.clients.original.truss_client.log_reader"
        return self._start(TRUSS, self.truss, module, how, where, id)

    def start_sdk(self, project: str, job: str) -> "subprocess.Popen[str]":
        variables = {"PATH": "/usr/bin:/bin", "HOME": str(self.directory), "PYTHONPATH": str(ROOT), **ENVIRONMENT}
        words = (self.place.control_url, self.place.api_key, project, job)
        return self._start(SDK, variables, "tests.clients.original.log_reader", *words)

    def _start(self, python: Path, variables: dict[str, str], module: str, *words: str) -> "subprocess.Popen[str]":
        command = [str(python), "-m", module, *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.directory, env=variables, text=True, stdout=pipe, stderr=pipe)


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Readers]:
    directory = tmp_path_factory.mktemp("bursts")
    with running(directory) as (product, api_key, replica):
        place = Place(product.control, product.proxy, api_key, replica)
        with place.control.http, place.proxy.http:
            yield Readers(place, directory, settled(directory, product.control, api_key))


def seen(reader: "subprocess.Popen[str]") -> Any:
    """Return what a reader prints, once it has ended."""
    output, errors = reader.communicate(timeout=TIMEOUT_S)
    assert reader.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


def test_every_line_of_a_job_is_read_once_while_it_prints(readers: Readers) -> None:
    place = readers.place
    body = {"training_project": {"name": "bursts"}}
    project = place.control("POST", "/v1/training_projects", body)["training_project"]["id"]
    script = readers.directory / "printing.py"
    script.write_text(PRINTING)
    job = new_job(place, project, f"{sys.executable} {script}")
    reading = {how: readers.start_truss(how, project, job.id) for how in ("watch", "pages")}
    reading["sdk"] = readers.start_sdk(project, job.id)

    by_client = {name: seen(reader) for name, reader in reading.items()}

    assert {name: one["messages"] == [SAYS, *LINES] for name, one in by_client.items()} == dict.fromkeys(reading, True)
    assert by_client["pages"]["parted"] == 0


def test_every_line_of_a_deployment_is_read_once_while_it_is_appended_to(readers: Readers) -> None:
    model = readers.place.model("bursts")

    answer = seen(readers.start_truss("deployment", model.id, model.deployment))

    assert answer == {"messages": LINES, "readings": 2, "parted": 0}
