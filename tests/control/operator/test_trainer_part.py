"""The trainer as a part of `tollgate up`: its settings, and what it gets none of."""

from pathlib import Path

from control.operator.trainer_part import READY_FILE, trainer_parts, training_settings


def test_training_off_starts_no_trainer(tmp_path: Path) -> None:
    assert trainer_parts(tmp_path, {"TOLLGATE_TRAINING_BACKEND": " off "}, 0) == []


async def test_the_trainer_is_ready_once_it_says_so(tmp_path: Path) -> None:
    (tmp_path / READY_FILE).touch()  # of an earlier run
    (part,) = trainer_parts(tmp_path, {}, 0)
    assert not await part.is_ready()
    (tmp_path / READY_FILE).touch()
    assert await part.is_ready()
    assert not part.is_needed_first


def test_the_trainer_gets_no_secret_of_the_other_parts(tmp_path: Path) -> None:
    names = ("TOLLGATE_SECRET_KEY", "TOLLGATE_OIDC_CLIENT_SECRET", "TOLLGATE_DATABASE_URL", "TOLLGATE_REDIS_URL")
    secret = dict.fromkeys(names, "secret")
    (part,) = trainer_parts(tmp_path, secret | {"TOLLGATE_INTERNAL_TOKEN": "token", "AWS_PROFILE": "store"}, 0)
    assert part.launch.env == {"TOLLGATE_INTERNAL_TOKEN": "token", "AWS_PROFILE": "store"}


def test_jobs_get_the_grace_that_is_set(tmp_path: Path) -> None:
    (part,) = trainer_parts(tmp_path, {"TOLLGATE_TRAINING_STOP_GRACE_S": "300"}, 0)
    (wrong,) = trainer_parts(tmp_path, {"TOLLGATE_TRAINING_STOP_GRACE_S": "soon"}, 0)
    assert part.grace_s > 310
    assert wrong.grace_s > 20


def test_files_are_in_the_data_directory_unless_a_setting_says_otherwise(tmp_path: Path) -> None:
    assert training_settings(tmp_path, {}) == {
        "TOLLGATE_TRAINING_DIR": str(tmp_path / "training"),
        "TOLLGATE_CHECKPOINT_STORE": (tmp_path / "training" / "checkpoints").as_uri(),
    }
    settings = {"TOLLGATE_TRAINING_DIR": "/big", "TOLLGATE_CHECKPOINT_STORE": "s3://bucket"}
    assert training_settings(tmp_path, settings) == settings
