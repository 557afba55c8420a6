"""Access by the data directory: only while an `up` serves it, with a key of its own per workspace."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from commands.errors import NoAccessError
from control.edges.process import up_record
from control.edges.process.data_directory import DataDirectory
from control.edges.process.up_record import UpRecord
from control.operator.cli import tollgate
from control.operator.local_access import local_access
from policy.credentials import prefix_of

RECORD = UpRecord("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3", has_own_database=True)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDirectory:
    for name in ("TOLLGATE_DATABASE_URL", "TOLLGATE_SECRET_KEY", "TOLLGATE_REDIS_URL", "TOLLGATE_DATA"):
        monkeypatch.delenv(name, raising=False)
    directory = DataDirectory(tmp_path / "data")
    directory.make()
    return directory


@pytest.fixture
def served(directory: DataDirectory) -> Iterator[DataDirectory]:
    """Yield a directory with one workspace; this process has the role of `tollgate up`."""
    create(directory, "acme")
    lock = directory.lock()
    up_record.write(directory, RECORD)
    yield directory
    os.close(lock)


def create(directory: DataDirectory, name: str) -> None:
    words = ["workspace", "create", name, "--prefix", name, "--data", str(directory.path)]
    assert CliRunner().invoke(tollgate, words).exit_code == 0


def keys_in(directory: DataDirectory) -> dict[str, str]:
    return dict(json.loads((directory.path / "commands.key.json").read_text()))


def test_key_is_made_once_and_kept_for_its_owner_alone(served: DataDirectory) -> None:
    access = local_access(served.path, None)
    assert (access.url, access.admin_url) == (RECORD.control, RECORD.admin)
    assert prefix_of(access.api_key)
    assert local_access(served.path, "acme") == access
    assert list(keys_in(served).values()) == [access.api_key]
    files = [served.path / name for name in ("commands.key.json", "up.json")]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    assert access.api_key not in repr(access)


def test_lost_or_revoked_key_is_made_again(served: DataDirectory) -> None:
    first = local_access(served.path, None)
    (workspace,) = keys_in(served)
    (served.path / "commands.key.json").write_text(json.dumps({workspace: "tg_AAAAAAAAAAAA." + "x" * 32}))
    second = local_access(served.path, None)
    (served.path / "commands.key.json").unlink()
    third = local_access(served.path, None)
    assert len({first.api_key, second.api_key, third.api_key}) == 3


def test_commands_at_the_same_time_make_one_key(served: DataDirectory) -> None:
    keys: list[str] = []
    threads = [threading.Thread(target=lambda: keys.append(local_access(served.path, None).api_key)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_workspace_is_named_when_there_are_several(served: DataDirectory) -> None:
    only = local_access(served.path, None)
    create(served, "later")
    with pytest.raises(NoAccessError, match="name a workspace with --workspace; there are acme, later"):
        local_access(served.path, None)
    with pytest.raises(NoAccessError, match="no workspace is called 'other'"):
        local_access(served.path, "other")
    assert local_access(served.path, "acme") == only
    assert local_access(served.path, "later").api_key != only.api_key


def test_record_of_a_killed_up_gives_no_access(directory: DataDirectory) -> None:
    create(directory, "acme")
    up_record.write(directory, RECORD)
    with pytest.raises(NoAccessError, match="no `tollgate up` serves this data directory"):
        local_access(directory.path, None)
    lock = directory.lock()
    os.close(lock)
    with pytest.raises(NoAccessError, match="no `tollgate up` serves"):
        local_access(directory.path, None)
    assert not (directory.path / "commands.key.json").exists()


def test_missing_directory_and_missing_workspace_say_what_to_do(directory: DataDirectory) -> None:
    with pytest.raises(NoAccessError, match="TOLLGATE_API_KEY is not set"):
        local_access(directory.path / "none", None)
    create(directory, "acme")
    lock = directory.lock()
    up_record.write(directory, UpRecord("", "", "", has_own_database=False))
    with pytest.raises(NoAccessError, match="set TOLLGATE_DATABASE_URL"):
        local_access(directory.path, None)
    os.close(lock)


def test_looking_does_not_keep_an_up_from_starting(served: DataDirectory, tmp_path: Path) -> None:
    assert served.is_served()
    other = DataDirectory(tmp_path / "other")
    other.make()
    os.close(other.lock())
    assert not other.is_served()
    os.close(other.lock(patience_s=0))


def test_key_is_not_sent_to_another_control(served: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOLLGATE_API_KEY", raising=False)
    words = ["endpoints", "list", "--data", str(served.path), "--url", "http://127.0.0.1:9"]
    refused = CliRunner().invoke(tollgate, words)
    assert refused.exit_code == 1
    assert "TOLLGATE_API_KEY is not set, and http://127.0.0.1:9 is not served from" in refused.output
