"""A certificate and its key in files that change: what ends a start, and what a running process goes on with."""

import asyncio
import os
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from runtime.environment import Environment, SettingsError
from runtime.tls import files as module
from runtime.tls.context import CERT_FILE, KEY_FILE
from runtime.tls.files import CertificateFiles, certificate_files
from tests.fakes.pair_files import PairFiles, replace, self_signed
from tests.waiting import eventually

PEM = serialization.Encoding.PEM


@pytest.fixture
def pair(tmp_path: Path) -> PairFiles:
    return PairFiles(tmp_path).issue()


@pytest.fixture
def followed(pair: PairFiles) -> CertificateFiles:
    return CertificateFiles(pair.cert_file, pair.key_file)


def test_neither_setting_means_plain_http() -> None:
    assert certificate_files(Environment({}), CERT_FILE, KEY_FILE) is None


@pytest.mark.parametrize(("name", "missing"), [(CERT_FILE, KEY_FILE), (KEY_FILE, CERT_FILE)])
def test_one_setting_alone_names_the_other(pair: PairFiles, name: str, missing: str) -> None:
    with pytest.raises(SettingsError, match=f"{missing} is not set, and {name} needs it"):
        certificate_files(Environment({name: pair.settings[name]}), CERT_FILE, KEY_FILE)


def encrypt(pair: PairFiles) -> None:
    key = serialization.load_pem_private_key(pair.key_file.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"password")
    pair.key_file.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, secret))


def put_authority_first(pair: PairFiles) -> None:
    authority, _ = self_signed("authority")
    pair.cert_file.write_bytes(authority + pair.cert_file.read_bytes())


def make_directory(pair: PairFiles) -> None:
    pair.cert_file.unlink()
    pair.cert_file.mkdir()


FAULTS: dict[str, tuple[Callable[[PairFiles], object], str]] = {
    "no certificate": (lambda pair: pair.cert_file.unlink(), f"{CERT_FILE}: it cannot be read: No such file"),
    "no key": (lambda pair: pair.key_file.unlink(), f"{KEY_FILE}: it cannot be read: No such file"),
    "directory": (make_directory, f"{CERT_FILE}: expected a file"),
    "garbage": (lambda pair: pair.cert_file.write_bytes(b"\x00\xff"), f"{CERT_FILE}: expected certificates in PEM"),
    "empty": (lambda pair: pair.cert_file.write_bytes(b""), f"{CERT_FILE}: expected certificates in PEM"),
    "huge": (lambda pair: pair.cert_file.write_bytes(bytes(2 << 20)), f"{CERT_FILE}: expected a PEM file of at most"),
    "garbage key": (lambda pair: pair.key_file.write_bytes(b"no key"), f"{KEY_FILE}: expected a private key in PEM"),
    "encrypted key": (encrypt, f"{KEY_FILE}: the key is encrypted"),
    "another key": (lambda pair: pair.key_file.write_bytes(self_signed("x")[1]), f"{KEY_FILE}: it is not the key"),
    "authority first": (put_authority_first, f"{CERT_FILE}: the server's own certificate must be the first"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_files_that_do_not_fit_end_a_start_with_the_cause(pair: PairFiles, fault: str) -> None:
    spoil, message = FAULTS[fault]
    spoil(pair)
    with pytest.raises(SettingsError, match=message) as raised:
        certificate_files(Environment(pair.settings), CERT_FILE, KEY_FILE)
    assert "PRIVATE KEY" not in str(raised.value)


def test_chain_and_key_in_one_file_are_served(pair: PairFiles) -> None:
    pair.cert_file.write_bytes(pair.cert_file.read_bytes() + self_signed("authority")[0] + pair.key_file.read_bytes())
    files = CertificateFiles(pair.cert_file, pair.cert_file)
    assert files.pair.pem.count(b"BEGIN CERTIFICATE") == 2
    assert isinstance(files.pair.context(), ssl.SSLContext)


def test_key_replaced_after_its_certificate_is_logged_once_and_then_taken(
    pair: PairFiles, followed: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", module.log.name)
    before = followed.pair
    certificate, key = self_signed("other")
    replace(pair.cert_file, certificate)
    assert [followed.look_again() for _ in range(3)] == [False] * 3
    assert followed.pair == before
    assert caplog.text.count("it is not the key of the certificate") == 1
    replace(pair.key_file, key)
    assert followed.look_again()
    assert followed.pair == pair.read() != before
    assert caplog.text.count("New connections have the new certificate") == 1
    assert not followed.look_again()


def test_files_that_come_back_as_they_were_change_nothing(
    pair: PairFiles, followed: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", module.log.name)
    content = pair.cert_file.read_bytes()
    pair.cert_file.unlink()
    assert not followed.look_again()
    replace(pair.cert_file, content)
    assert not followed.look_again()
    assert "fit again" in caplog.text


def test_switched_link_is_a_change(tmp_path: Path) -> None:
    """Kubernetes switches the link `..data`; the names that the settings have stay as they are."""
    first, second = (PairFiles(tmp_path / name) for name in ("first", "second"))
    for one in (first, second):
        one.directory.mkdir()
        one.issue()
    data = tmp_path / "..data"
    data.symlink_to(first.directory)
    files = CertificateFiles(data / first.cert_file.name, data / first.key_file.name)
    fresh = tmp_path / "..data_tmp"
    fresh.symlink_to(second.directory)
    os.replace(fresh, data)
    assert files.look_again()
    assert files.pair == second.read()


def test_file_written_in_place_is_a_change(pair: PairFiles, followed: CertificateFiles, tmp_path: Path) -> None:
    other = PairFiles(tmp_path / "other")
    other.directory.mkdir()
    other.issue("another name, as long as it likes")
    shutil.copyfile(other.cert_file, pair.cert_file)
    shutil.copyfile(other.key_file, pair.key_file)
    assert followed.look_again()
    assert followed.pair == other.read()


async def test_following_tells_of_each_new_pair(
    pair: PairFiles, followed: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 0.01)
    pems: list[bytes] = []
    followed.changed = lambda: pems.append(followed.pair.pem)
    task = asyncio.create_task(followed.follow())
    try:
        for name in ("second", "third"):
            pair.issue(name)
            await eventually(lambda: pems[-1:] == [pair.read().pem])
    finally:
        task.cancel()


def test_key_is_in_no_representation(followed: CertificateFiles) -> None:
    assert "PRIVATE KEY" not in repr(followed.pair)


def test_ended_certificate_is_served(pair: PairFiles) -> None:
    pair.issue(days=-1)
    assert CertificateFiles(pair.cert_file, pair.key_file).pair.ends_at_s > 0
