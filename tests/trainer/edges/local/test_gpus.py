"""The GPUs of this machine, read from files as NVIDIA's driver writes them."""

from pathlib import Path

import pytest

from trainer.edges.local import gpus
from trainer.edges.local.gpus import Gpu, free_gpus, gpu_type, gpu_variables, list_gpus
from trainer.edges.local.machine import this_host
from trainer.settings import Capacity

MODELS = {"0000:3b:00.0": "NVIDIA A100-SXM4-40GB", "0000:1a:00.0": "Tesla T4", "0000:af:00.0": "NVIDIA A100-SXM4-40GB"}


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (place, model) in enumerate(MODELS.items()):
        information = f"Model: \t\t {model}\nIRQ:   \t\t 42\nGPU UUID: \t GPU-{number}\nBus Type: \t PCIe\n"
        (tmp_path / place).mkdir()
        (tmp_path / place / "information").write_text(information)
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path)


@pytest.mark.usefixtures("driver")
def test_gpus_are_found_by_their_place_on_the_bus() -> None:
    assert list_gpus() == (Gpu("GPU-1", "T4"), Gpu("GPU-0", "A100"), Gpu("GPU-2", "A100"))
    assert this_host(Capacity(), list_gpus()).gpus == {"T4": 1, "A100": 2}


def test_machine_without_the_driver_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path / "none")
    assert list_gpus() == ()
    assert gpu_variables((), ()) == {}


@pytest.mark.usefixtures("driver")
def test_node_gets_gpus_of_its_type_that_no_other_has() -> None:
    assert free_gpus(list_gpus(), "A100", 1, ("GPU-0",)) == ("GPU-2",)
    assert free_gpus(list_gpus(), "A100", 2, ()) == ("GPU-0", "GPU-2")
    assert free_gpus(list_gpus(), None, 0, ()) == ()


@pytest.mark.usefixtures("driver")
def test_node_sees_its_own_gpus_and_one_without_sees_none() -> None:
    assert gpu_variables(list_gpus(), ("GPU-0", "GPU-2")) == {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-2"}
    assert gpu_variables(list_gpus(), ()) == {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("model", "type"),
    [("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA L40S", "L40S"), ("NVIDIA GeForce RTX 4090", "4090"), ("", "GPU")],
)
def test_type_is_the_first_part_of_the_model_with_a_digit(model: str, type: str) -> None:
    assert gpu_type(model) == type
