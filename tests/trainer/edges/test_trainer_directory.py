"""One trainer a directory, with a name that a restart keeps."""

import stat
from pathlib import Path

import pytest

from trainer.edges.trainer_directory import DirectoryInUseError, DirectoryUnusableError, TrainerDirectory


def test_a_second_trainer_is_refused_until_the_first_has_ended_and_has_its_name_then(tmp_path: Path) -> None:
    first = TrainerDirectory(tmp_path / "t")
    second = TrainerDirectory(tmp_path / "t")
    name = first.lock()
    with pytest.raises(DirectoryInUseError, match=str(tmp_path)):
        second.lock()
    first.release()
    assert second.lock() == name
    second.release()


def test_two_directories_have_two_names(tmp_path: Path) -> None:
    trainers = [TrainerDirectory(tmp_path / name) for name in "ab"]
    assert len({trainer.lock() for trainer in trainers}) == 2
    for trainer in trainers:
        trainer.release()


@pytest.mark.parametrize("content", ["", "short", "not hexadecimal!", "ÿ" * 16, "0" * 17])
def test_a_damaged_name_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "trainer.id").write_text(content)
    trainer = TrainerDirectory(tmp_path)
    name = trainer.lock()
    trainer.release()
    assert len(name) == 16
    assert (tmp_path / "trainer.id").read_text() == name


def test_only_the_owner_may_read_a_new_directory(tmp_path: Path) -> None:
    trainer = TrainerDirectory(tmp_path / "t")
    trainer.lock()
    trainer.release()
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == 0o700


def test_a_path_that_cannot_be_a_directory_is_refused_by_the_name_of_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DirectoryUnusableError, match="TOLLGATE_TRAINING_DIR"):
        TrainerDirectory(tmp_path / "file" / "t").lock()
