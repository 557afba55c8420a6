"""Keys of a file that changes while a process has them."""

import asyncio
import os
from base64 import b64encode
from pathlib import Path

import pytest

from policy.sealing import SealedWithUnknownKeyError, parse_keys, seal, unseal
from runtime import secret_keys as module
from runtime.environment import Environment, SettingsError
from runtime.secret_keys import SecretKeyFile, secret_keys, services_of
from tests.waiting import eventually

OLD = b"o" * 32
NEW = b"n" * 32
NAMES = ("TOLLGATE_SECRET_KEY", "TOLLGATE_SECRET_KEY_FILE")


def write(path: Path, *keys: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(",".join(b64encode(key).decode() for key in keys) + "\n")
    os.replace(fresh, path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret.key"
    write(path, OLD)
    return path


def test_what_is_sealed_under_a_newer_key_opens_at_once(file: Path) -> None:
    keys = SecretKeyFile(file, parse_keys)
    write(file, NEW, OLD)
    assert unseal(keys, "s", seal((NEW,), "s", "value", b"n" * 12)) == "value"
    assert keys[:] == (NEW, OLD)
    assert keys[0] == NEW


def test_a_value_that_no_key_opens_stays_closed(file: Path) -> None:
    keys = SecretKeyFile(file, parse_keys)
    with pytest.raises(SealedWithUnknownKeyError):
        unseal(keys, "s", seal((NEW,), "s", "value", b"n" * 12))


@pytest.mark.parametrize("text", ["", "nonsense", "c2hvcnQ="])
def test_a_file_that_cannot_be_read_leaves_the_keys_and_is_logged_once(
    file: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys = SecretKeyFile(file, parse_keys)
    file.write_text(text)
    for _ in range(2):
        keys.look_again()
    assert keys[:] == (OLD,)
    assert caplog.text.count("Mend the file") == 1
    file.unlink()
    keys.look_again()
    assert keys[:] == (OLD,)


async def test_a_process_that_seals_only_follows_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 0.005)
    keys = SecretKeyFile(file, parse_keys)
    (service,) = services_of(keys)
    task = asyncio.create_task(service())
    write(file, NEW, OLD)
    await eventually(lambda: keys[0] == NEW)
    task.cancel()


def test_keys_of_the_environment_do_not_change(file: Path) -> None:
    keys = secret_keys(Environment({NAMES[0]: b64encode(OLD).decode()}), *NAMES, parse_keys)
    assert keys == (OLD,)
    assert services_of(keys) == ()


@pytest.mark.parametrize("content", [None, "hunter2"])
def test_a_wrong_file_is_named_without_its_content(file: Path, content: str | None) -> None:
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(SettingsError, match=NAMES[1]) as caught:
        secret_keys(Environment({NAMES[1]: str(file)}), *NAMES, parse_keys)
    assert "hunter2" not in str(caught.value)


def test_two_sources_of_keys_are_refused(file: Path) -> None:
    both = {NAMES[0]: b64encode(OLD).decode(), NAMES[1]: str(file)}
    with pytest.raises(SettingsError, match="unset one of them"):
        secret_keys(Environment(both), *NAMES, parse_keys)
