"""`tollgate trainer`: a wrong setting ends the start with one sentence that names it."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.fakes.training_control import TOKEN
from trainer.__main__ import main
from trainer.app import backend_class
from trainer.edges.local import LocalBackend
from trainer.settings import Settings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"TOLLGATE_TRAINING_CAPACITY": "cpu=many"}, "TOLLGATE_TRAINING_CAPACITY: expected cpu=N"),
        ({"TOLLGATE_CHECKPOINT_MAX_SIZE": "much"}, "TOLLGATE_CHECKPOINT_MAX_SIZE: expected a size such as 512Mi"),
        ({"TOLLGATE_CHECKPOINT_MAX_SIZE": "1Ti,=1Gi"}, "TOLLGATE_CHECKPOINT_MAX_SIZE: expected SIZE,WORKSPACE_ID=SIZE"),
        ({"TOLLGATE_WEIGHTS_MAX_SIZE": "0Gi"}, "TOLLGATE_WEIGHTS_MAX_SIZE: expected a size such as 512Mi"),
        ({"TOLLGATE_WEIGHTS_HUB_URL": "hub"}, "TOLLGATE_WEIGHTS_HUB_URL: expected an http(s)://"),
        ({"TOLLGATE_EGRESS_ALLOW": "here"}, "TOLLGATE_EGRESS_ALLOW: 'here' is neither a CIDR nor"),
        ({"TOLLGATE_EGRESS_CA_FILE": "/none"}, "TOLLGATE_EGRESS_CA_FILE: expected a PEM file that can be read"),
        ({"TOLLGATE_TRAINING_BACKEND": "slurm"}, "TOLLGATE_TRAINING_BACKEND: expected one of local, ray, off"),
        ({"TOLLGATE_TRAINING_BACKEND": "off"}, "TOLLGATE_TRAINING_BACKEND is off"),
        ({"TOLLGATE_TRAINING_BACKEND": "ray"}, "TOLLGATE_RAY_ADDRESS is not set"),
        ({"TOLLGATE_INTERNAL_TOKEN": ""}, "TOLLGATE_INTERNAL_TOKEN is not set"),
        ({"TOLLGATE_TRAINING_DIR": "/dev/null/training"}, "TOLLGATE_TRAINING_DIR: /dev/null/training: Not a directory"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_setting_ends_the_start_with_one_sentence(settings: dict[str, str], expected: str) -> None:
    result = CliRunner().invoke(main, env={"TOLLGATE_INTERNAL_TOKEN": TOKEN} | settings)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"tollgate trainer: {expected}")
    assert result.stderr.count("\n") == 1


def test_a_flag_overrides_its_setting() -> None:
    result = CliRunner().invoke(main, ["--backend", "off"], env={"TOLLGATE_INTERNAL_TOKEN": TOKEN})
    assert "TOLLGATE_TRAINING_BACKEND is off" in result.stderr
    wrong = CliRunner().invoke(main, ["--backend", "slurm"], env={"TOLLGATE_INTERNAL_TOKEN": TOKEN})
    assert wrong.exit_code == 2
    assert "--backend" in wrong.stderr


def test_ray_that_is_not_installed_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    settings = {"TOLLGATE_TRAINING_BACKEND": "ray", "TOLLGATE_RAY_ADDRESS": "http://127.0.0.1:8265"}
    result = CliRunner().invoke(main, env={"TOLLGATE_INTERNAL_TOKEN": TOKEN} | settings)
    assert result.exit_code == 2
    assert "Install tollgate[ray]" in result.stderr


def test_local_is_the_default(tmp_path: Path) -> None:
    settings = Settings.from_environ({"TOLLGATE_INTERNAL_TOKEN": TOKEN, "TOLLGATE_TRAINING_DIR": str(tmp_path)})
    assert backend_class(settings) is LocalBackend


def test_checkpoints_of_a_named_workspace_have_a_size_of_their_own() -> None:
    environ = {"TOLLGATE_INTERNAL_TOKEN": TOKEN, "TOLLGATE_CHECKPOINT_MAX_SIZE": "2Gi, ws_1=512Mi,ws_2=4Ti"}
    sizes = Settings.from_environ(environ).checkpoint_sizes
    assert [sizes.of(id) for id in ("ws_1", "ws_2", "ws_3")] == [512 << 20, 4 << 40, 2 << 30]
    assert Settings.from_environ({"TOLLGATE_INTERNAL_TOKEN": TOKEN}).checkpoint_sizes.of("ws_1") == 1 << 40
