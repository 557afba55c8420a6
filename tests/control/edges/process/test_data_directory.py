"""The data directory: one holder at a time, keys made once and readable by their owner only."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from control.edges.process.data_directory import DataDirectory, DataDirectoryBusyError, DataDirectoryError
from control.edges.sql.database import open_engine
from policy.sealing import parse_keys


def made(path: Path) -> DataDirectory:
    directory = DataDirectory(path)
    directory.make()
    return directory


def test_keys_are_made_once_and_private(tmp_path: Path) -> None:
    directory = made(tmp_path / "data")
    token = directory.internal_token()
    key = directory.make_secret_key().read_text()
    assert len(token) >= 32
    assert len(parse_keys(key)[0]) == 32
    again = made(tmp_path / "data")
    assert (again.internal_token(), again.make_secret_key().read_text()) == (token, key)
    modes = {name: stat.S_IMODE((tmp_path / "data" / name).stat().st_mode) for name in ("internal.token", "secret.key")}
    assert modes == {"internal.token": 0o600, "secret.key": 0o600}
    assert sorted(os.listdir(directory.path)) == ["internal.token", "secret.key"], "a temporary file stayed behind"


def test_a_key_file_that_others_may_read_is_closed(tmp_path: Path) -> None:
    directory = made(tmp_path)
    key = directory.make_secret_key().read_text()
    (tmp_path / "secret.key").chmod(0o644)
    assert directory.make_secret_key().read_text() == key
    assert stat.S_IMODE((tmp_path / "secret.key").stat().st_mode) == 0o600


def test_a_new_key_is_never_made_beside_an_older_database(tmp_path: Path) -> None:
    directory = made(tmp_path)
    directory.database.touch()
    with pytest.raises(DataDirectoryError, match=r"has a database but no secret\.key"):
        directory.make_secret_key().read_text()


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    holder = made(tmp_path).lock()
    with pytest.raises(DataDirectoryBusyError, match=f"pid {os.getpid()}"):
        made(tmp_path).lock()
    os.close(holder)
    os.close(made(tmp_path).lock())


def test_the_lock_lasts_until_the_last_heir_of_a_dead_holder_is_gone(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, os; from pathlib import Path;"
        "from control.edges.process.data_directory import DataDirectory;"
        "fd = DataDirectory(Path(sys.argv[1])).lock();"
        "null = subprocess.DEVNULL; heir = subprocess.Popen(['sleep', '60'], pass_fds=(fd,), stdout=null, stderr=null);"
        "print(heir.pid, flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    made(tmp_path)
    holder = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    heir = int(holder.stdout)
    try:
        with pytest.raises(DataDirectoryBusyError):
            made(tmp_path).lock(patience_s=0.2)
    finally:
        os.kill(heir, signal.SIGKILL)
    os.close(made(tmp_path).lock())


def test_a_long_path_still_has_a_short_way_to_its_socket(tmp_path: Path) -> None:
    long = tmp_path / ("d" * 60) / ("e" * 60)
    socket = made(long).redis_socket()
    assert len(str(socket)) < 100
    assert socket.parent.resolve() == long.resolve(), "the socket is in the data directory itself"
    assert stat.S_IMODE(socket.parent.parent.lstat().st_mode) == 0o700
    assert made(long).redis_socket() == socket
    assert made(tmp_path / "s").redis_socket() == tmp_path / "s" / "redis.sock"


def test_a_path_that_no_url_can_hold_is_refused() -> None:
    with pytest.raises(DataDirectoryError, match=r"must not contain '\?'"):
        DataDirectory(Path("what?"))


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataDirectoryError, match="cannot create the data directory"):
        made(tmp_path / "file" / "data")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def left_open(path: Path) -> Path:
    """A directory as it was made under another umask, with files in it."""
    (path / "journal" / "w1").mkdir(parents=True)
    for name in ("control.db", "redis.log", "journal/w1/00000001.journal"):
        (path / name).touch()
        (path / name).chmod(0o644)
    (path / "link").symlink_to("/etc/hostname")
    for folder in (path, path / "journal", path / "journal" / "w1"):
        folder.chmod(0o755)
    return path


def test_a_directory_that_others_may_read_is_closed_and_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = left_open(tmp_path / "data")
    link_before = Path("/etc/hostname").stat().st_mode
    made(path)
    assert {mode_of(entry) for entry in path.rglob("*") if entry.is_dir() and not entry.is_symlink()} == {0o700}
    assert {mode_of(entry) for entry in path.rglob("*") if entry.is_file() and not entry.is_symlink()} == {0o600}
    assert mode_of(path) == 0o700
    assert Path("/etc/hostname").stat().st_mode == link_before
    assert f"Others could read {path} and 5 more; closed to all but the owner" in caplog.text
    caplog.clear()
    made(path)
    assert not caplog.text


def test_a_directory_of_another_user_is_refused_with_the_remedy(tmp_path: Path) -> None:
    theirs = tmp_path / "data"
    theirs.mkdir()
    if os.geteuid() == 0:
        os.chown(theirs, 12345, -1)
    else:
        theirs = Path("/")
    with pytest.raises(DataDirectoryError, match=r"belongs to user \d+, but this process runs as user .* \(chown\)"):
        made(theirs)


async def test_a_database_beside_files_of_others_is_closed_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    file = tmp_path / "control.db"
    other = tmp_path / "other"
    for path in (file, other):
        path.touch()
        path.chmod(0o644)
    await open_engine(f"sqlite+aiosqlite:///{file}").dispose()
    assert (mode_of(file), mode_of(other), mode_of(tmp_path)) == (0o600, 0o644, 0o755)
