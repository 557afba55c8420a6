"""Backups are whole or not made; a restore changes nothing unless it can do all."""

import asyncio
import json
import os
import sqlite3
import stat
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from control.edges.process import backups
from control.edges.process.backups import BackupError, make_backup, read_backup, restore_backup
from control.edges.process.data_directory import DataDirectory, DataDirectoryBusyError
from control.edges.sql.migrations.migrate import migrate
from control.edges.sql.store import Store
from control.resources.secrets import NewSecret, put_secret
from control.resources.workspaces import create_workspace
from policy.sealing import key_ids, parse_keys


def keys_of(directory: DataDirectory) -> tuple[bytes, ...]:
    return parse_keys(directory.secret_key.read_text())


async def _fill(directory: DataDirectory, keys: Sequence[bytes]) -> None:
    store = Store.at(directory.database_url)
    await migrate(store.engine)
    workspace = await create_workspace(store, "acme", ["acme"], "basic", True)
    await put_secret(store, keys, workspace["workspace_id"], NewSecret("vendor", "sk-vendor", None))
    await store.close()


@pytest.fixture
def directory(tmp_path: Path) -> DataDirectory:
    directory = DataDirectory(tmp_path / "data")
    directory.make()
    directory.make_secret_key()
    asyncio.run(_fill(directory, keys_of(directory)))
    return directory


@pytest.fixture
def copy(directory: DataDirectory, tmp_path: Path) -> Path:
    target = tmp_path / "backups" / "one"
    make_backup(directory, target, keys_of(directory), directory.secret_key)
    return target


def names(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as conn:
        return [name for (name,) in conn.execute("SELECT name FROM workspaces ORDER BY name")]


def rename(database: Path, name: str) -> None:
    with closing(sqlite3.connect(database)) as conn, conn:
        conn.execute("UPDATE workspaces SET name = ?", (name,))


def test_a_backup_has_database_and_keys_for_its_owner_alone(copy: Path, directory: DataDirectory) -> None:
    assert sorted(os.listdir(copy)) == ["backup.json", "control.db", "secret.key"]
    assert os.listdir(copy.parent) == ["one"], "nothing else stays"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (copy, *copy.iterdir())}
    assert set(modes.values()) == {0}
    assert (copy / "secret.key").read_text() == directory.secret_key.read_text()
    assert names(copy / "control.db") == ["acme"]


@pytest.mark.parametrize("kind", ["file", "full", "link"])
def test_a_target_that_is_in_use_is_left_alone(directory: DataDirectory, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    if kind == "file":
        target.write_text("mine")
    elif kind == "link":
        target.symlink_to(tmp_path / "nowhere")
    else:
        target.mkdir()
        (target / "mine").touch()
    with pytest.raises(BackupError, match="not an empty directory"):
        make_backup(directory, target, keys_of(directory), directory.secret_key)
    assert kind != "full" or os.listdir(target) == ["mine"]


def test_an_empty_directory_is_a_target(directory: DataDirectory, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make_backup(directory, tmp_path / "empty", keys_of(directory), directory.secret_key)
    assert read_backup(tmp_path / "empty").unopened == 0


def test_a_backup_with_other_keys_than_those_of_control_is_not_made(directory: DataDirectory, tmp_path: Path) -> None:
    with closing(sqlite3.connect(directory.database)) as conn, conn:
        conn.execute("INSERT INTO sealing_keys VALUES (1, ?)", key_ids([b"c" * 32]))
    with pytest.raises(BackupError, match="Nothing was made"):
        make_backup(directory, tmp_path / "out", keys_of(directory), directory.secret_key)
    assert not (tmp_path / "out").exists()
    assert sorted(os.listdir(tmp_path)) == ["data"]


def test_a_restore_replaces_the_database_and_keeps_later_keys_in_front(copy: Path, directory: DataDirectory) -> None:
    rename(directory.database, "later")
    own = "bmV3LWtleS1uZXcta2V5LW5ldy1rZXktbmV3LWtleS0="
    old = directory.secret_key.read_text().strip()
    directory.secret_key.write_text(own + "\n")
    restore_backup(directory, copy, ())
    assert names(directory.database) == ["acme"]
    assert directory.secret_key.read_text().strip().split(",") == [own, old]
    assert not any(path.name.endswith(("-wal", "-shm", "-restored")) for path in directory.path.iterdir())


def test_a_restore_into_a_new_directory_works_there(copy: Path, tmp_path: Path) -> None:
    other = DataDirectory(tmp_path / "elsewhere")
    restore_backup(other, copy, ())
    assert names(other.database) == ["acme"]
    assert other.secret_key.read_text() == (copy / "secret.key").read_text()
    assert stat.S_IMODE(other.database.stat().st_mode) == 0o600


def test_a_directory_that_an_up_serves_is_left_alone(copy: Path, directory: DataDirectory) -> None:
    rename(directory.database, "later")
    lock = directory.lock()
    with pytest.raises(DataDirectoryBusyError):
        restore_backup(directory, copy, ())
    os.close(lock)
    assert names(directory.database) == ["later"]


@pytest.mark.parametrize("harm", ["no manifest", "cut database", "no keys", "other keys", "newer", "path"])
def test_a_backup_that_is_not_whole_changes_nothing(copy: Path, directory: DataDirectory, harm: str) -> None:
    rename(directory.database, "later")
    before = directory.secret_key.read_text()
    manifest = json.loads((copy / "backup.json").read_text())
    if harm == "no manifest":
        (copy / "backup.json").unlink()
    elif harm == "cut database":
        os.truncate(copy / "control.db", 4096)
    elif harm == "no keys":
        (copy / "secret.key").unlink()
    elif harm == "other keys":
        (copy / "secret.key").write_text(before.swapcase())
    elif harm == "newer":
        (copy / "backup.json").write_text(json.dumps(manifest | {"schema": "9999"}))
    else:
        (copy / "backup.json").write_text(json.dumps(manifest | {"files": {"../data/secret.key": "x"}}))
    with pytest.raises(BackupError, match="Nothing was changed"):
        restore_backup(directory, copy, ())
    assert names(directory.database) == ["later"]
    assert directory.secret_key.read_text() == before


def test_secrets_that_nobody_could_open_are_not_restored(directory: DataDirectory, tmp_path: Path) -> None:
    make_backup(directory, tmp_path / "out", keys_of(directory), None)
    other = DataDirectory(tmp_path / "elsewhere")
    with pytest.raises(BackupError, match="Set TOLLGATE_SECRET_KEY"):
        restore_backup(other, tmp_path / "out", ())
    assert not other.database.exists()
    restore_backup(other, tmp_path / "out", keys_of(directory))
    assert not other.secret_key.exists()


@pytest.mark.parametrize("step", ["_end_log", "sync_directory"])
def test_a_restore_that_is_cut_off_leaves_one_database_whole(
    copy: Path, directory: DataDirectory, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename(directory.database, "later")

    class CutOffError(Exception):
        pass

    def cut_off(*_: object) -> None:
        raise CutOffError

    with monkeypatch.context() as patch:
        patch.setattr(backups, step, cut_off)
        with pytest.raises(CutOffError):
            restore_backup(directory, copy, ())
    assert names(directory.database) == (["later"] if step == "_end_log" else ["acme"])
    restore_backup(directory, copy, ())
    assert names(directory.database) == ["acme"]
