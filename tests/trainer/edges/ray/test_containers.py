"""A job's image on a machine with a `podman` that runs its command on the machine itself."""

from pathlib import Path

import pytest
import ray

from tests.podman import BARE, NODE, Podman
from trainer.edges.ray.driver.containers import ImageError, check_image, own_variables, runtime_env


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Podman:
    podman = Podman.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(podman.directory), prepend=":")
    return podman


async def test_image_with_what_a_node_needs_passes(podman: Podman, tmp_path: Path) -> None:
    await check_image(NODE, tmp_path)

    (run,) = podman.runs()
    assert (run["verb"], run["image"]) == ("run", NODE)
    assert ["--volume", f"{tmp_path}:{tmp_path}"] in run["options"]
    assert "--env" not in [name for name, _ in run["options"]]


async def test_image_without_ray_is_refused_with_what_it_needs(podman: Podman, tmp_path: Path) -> None:
    with pytest.raises(ImageError) as error:
        await check_image(BARE, tmp_path)

    assert str(error.value) == f"the image {BARE} needs Ray {ray.__version__}, as the cluster has it, and has none"


async def test_image_that_cannot_be_pulled_is_refused_with_podmans_reason(podman: Podman, tmp_path: Path) -> None:
    with pytest.raises(ImageError) as error:
        await check_image("python:3.11", tmp_path)

    name = "docker.io/library/python:3.11"
    assert str(error.value) == (
        f"the image {name} cannot be run: Error: initializing source docker://{name}: manifest unknown"
    )


async def test_directory_that_the_images_user_cannot_write_is_named(podman: Podman, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ImageError, match=f"cannot write in {missing}"):
        await check_image(NODE, missing)


async def test_machine_without_podman_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError, match="this machine has no program `podman`"):
        await check_image(NODE, tmp_path)


@pytest.mark.parametrize(
    "program",
    [
        "print('[' * 5000)",
        "print('{}')",
        "print('5')",
        "print('x' * 1_000_000)",
        "print('\\x1b[31mred\\x00')",
        """print('{"Python": "\\\\u001b[0m"}')""",
    ],
)
async def test_whatever_an_image_prints_is_a_reason_of_one_line(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    podman = Podman.install(tmp_path / "bin").directory / "podman"
    first_line = podman.read_text().partition("\n")[0]
    podman.write_text(f"{first_line}\n{program}\n")
    monkeypatch.setenv("PATH", str(podman.parent), prepend=":")

    with pytest.raises(ImageError) as error:
        await check_image(NODE, tmp_path)

    assert str(error.value).startswith(f"the image {NODE} ")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 400


def test_what_ray_gets_holds_the_image_and_the_directory_alone() -> None:
    assert runtime_env("python:3.11", Path("/srv/nodes")) == {
        "container": {
            "image": "docker.io/library/python:3.11",
            "run_options": ["--rm", "--volume=/srv/nodes:/srv/nodes"],
        }
    }


def test_no_other_text_gets_into_a_runtime_environment() -> None:
    with pytest.raises(ValueError, match="is not the name of a container image"):
        runtime_env("python:3.11 --privileged", Path("/srv/nodes"))


def test_variables_of_ray_and_of_the_machine_are_none_of_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "HOME", "PYTHONPATH", "CUDA_HOME"):
        monkeypatch.setenv(name, "x")

    variables = own_variables()

    assert variables["CUDA_HOME"] == "x"
    assert not {"RAY_ADDRESS", "HOME", "PYTHONPATH"} & variables.keys()
