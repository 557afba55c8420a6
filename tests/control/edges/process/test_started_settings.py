"""The settings of a running `up`, kept for the doctor: no secret is in the file, and what differs is told."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from control.edges.process import started_settings
from control.edges.process.data_directory import DataDirectory
from control.operator.doctor.examination import examine
from control.operator.doctor.findings import Finding, Level
from control.operator.doctor.installation import Installation
from runtime.setting_names import NAMES, holds_secret

SECRETS = {
    "TOLLGATE_DATABASE_URL": "postgresql://tollgate:hunter2@db.example/tollgate",
    "TOLLGATE_REDIS_URL": "redis://redis.example/0?password=hunter3",
    "TOLLGATE_INTERNAL_TOKEN": "hunter4-hunter4-hunter4",
    "TOLLGATE_SECRET_KEY": "hunter5",
    "TOLLGATE_METRICS_TOKEN": "hunter6",
    "TOLLGATE_ASYNC_REDIS_URL": "rediss://a.example:1,redis://:hunter7@b.example:2",
}
PLAIN = {"TOLLGATE_MAX_IN_FLIGHT": "100", "TOLLGATE_VENDOR_B_BASE_URL": "http://127.0.0.1:1"}
COMMANDS = {"TOLLGATE_API_KEY": "hunter8", "TOLLGATE_WORKSPACE": "acme"}
HARMLESS = {
    "TOLLGATE_ASSUMED_OUTPUT_TOKENS",
    "TOLLGATE_MAX_REPORTED_TOKENS",
    "TOLLGATE_PORTAL_KEYS",
    "TOLLGATE_SECRET_KEY_FILE",
    "TOLLGATE_TLS_KEY_FILE",
}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[DataDirectory]:
    """A directory that this process serves, as `up` does."""
    directory = DataDirectory(tmp_path / "data")
    directory.make()
    lock = directory.lock()
    yield directory
    os.close(lock)


def started(directory: DataDirectory, environ: dict[str, str]) -> Installation:
    """The installation as a shell with these settings sees it."""
    database_url = environ.get("TOLLGATE_DATABASE_URL")
    return Installation(environ, directory, database_url, environ.get("TOLLGATE_REDIS_URL")).as_started()


def texts(findings: tuple[Finding, ...] | list[Finding]) -> str:
    return "\n".join(f"{finding.level} {finding.check} {finding.text} {finding.remedy}" for finding in findings)


def test_no_secret_is_written_and_only_the_owner_reads(served: DataDirectory) -> None:
    started_settings.write(served, {**SECRETS, **PLAIN, **COMMANDS, "HOME": "/root", "TOLLGATE_NO_SETTING": "hunter9"})
    file = served.path / "settings.json"
    assert "hunter" not in file.read_text()
    assert [(served.path / name).stat().st_mode & 0o777 for name in (file.name, "settings.key")] == [0o600, 0o600]
    record = started_settings.read(served)
    assert record is not None
    assert record.plain == PLAIN
    assert record.digests.keys() == SECRETS.keys()
    assert all(record.has(name, value) for name, value in {**SECRETS, **PLAIN}.items())
    assert not any(record.has(name, value + "x") for name, value in {**SECRETS, **PLAIN}.items())


def test_digests_of_one_secret_differ_between_directories(served: DataDirectory, tmp_path: Path) -> None:
    other = DataDirectory(tmp_path / "other")
    other.make()
    for directory in (served, other):
        started_settings.write(directory, SECRETS)
    name = "TOLLGATE_METRICS_TOKEN"
    files = [(directory.path / "settings.json").read_text() for directory in (served, other)]
    digests = {re.findall(rf'"{name}": "([0-9a-f]{{64}})"', text)[0] for text in files}
    assert len(digests) == 2


def test_every_setting_whose_name_speaks_of_a_secret_is_one() -> None:
    speaking = {name for name in NAMES if re.search("KEY|TOKEN|SECRET|PASSWORD", name)}
    assert {name for name in speaking if not holds_secret(name, "x")} == HARMLESS


@pytest.mark.parametrize(
    ("value", "is_secret"),
    [
        ("redis://a:6379/0", False),
        ("redis://user@a", True),
        ("redis://a,redis://:pw@b", True),
        ("redis://a/?password=x", True),
        ("host=db password=x", True),
    ],
)
def test_urls_with_users_or_parameters_are_secrets(value: str, is_secret: bool) -> None:
    assert holds_secret("TOLLGATE_REDIS_URL", value) is is_secret


def test_the_products_settings_are_judged_and_those_of_the_shell_are_compared(served: DataDirectory) -> None:
    product = {**PLAIN, "TOLLGATE_MAX_PARKED": "7", "TOLLGATE_METRICS_TOKEN": "hunter6"}
    started_settings.write(served, product)
    shell = {
        **{"PATH": "/bin", "TOLLGATE_API_KEY": "tg_x", "TOLLGATE_MAX_PARKED": "7"},
        **{"TOLLGATE_MAX_IN_FLIGHT": "5", "TOLLGATE_TRACES": "on", "TOLLGATE_METRICS_TOKEN": "hunter0"},
    }
    installation = started(served, shell)
    assert installation.environ == {**PLAIN, "PATH": "/bin", "TOLLGATE_API_KEY": "tg_x", "TOLLGATE_MAX_PARKED": "7"}
    assert installation.unknown == {"TOLLGATE_METRICS_TOKEN"}
    assert [finding.text for finding in installation.differences] == [
        "TOLLGATE_MAX_IN_FLIGHT is '5' in this shell, and '100' for the running product",
        "TOLLGATE_METRICS_TOKEN in this shell is not that of the running product",
        "TOLLGATE_TRACES is set in this shell, and not for the running product",
    ]
    assert {finding.level for finding in installation.differences} == {Level.WARNING}
    assert "hunter" not in texts(installation.differences)
    assert started(served, product).differences == ()
    assert started(served, {}).environ == {**PLAIN, "TOLLGATE_MAX_PARKED": "7"}


async def test_what_needs_an_unknown_secret_is_not_checked(served: DataDirectory) -> None:
    """Neither its own database nor its own Redis, which the product does not use."""
    started_settings.write(served, {**SECRETS, "TOLLGATE_ASYNC": "off"})
    findings = await examine(Installation({}, served, None, None))
    unseen = [finding.check for finding in findings if finding.text.startswith("not checked: this shell")]
    assert sorted(unseen) == ["async", "database", "redis", "secrets"]
    assert "hunter" not in texts(findings)
    assert [finding.level for finding in findings if finding.check == "settings"] == [Level.OK]


def test_a_shell_is_judged_by_itself_where_nobody_serves(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    directory.make()
    lock = directory.lock()
    started_settings.write(directory, PLAIN)
    os.close(lock)
    shell = Installation({"TOLLGATE_MAX_IN_FLIGHT": "5"}, directory, None, None)
    assert shell.as_started() is shell
    started_settings.remove(directory)
    assert not (directory.path / "settings.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"plain": 1}', '{"plain": {}, "digests": null}'])
def test_rubbish_in_the_file_is_no_record(served: DataDirectory, text: str) -> None:
    (served.path / "settings.json").write_text(text)
    assert started_settings.read(served) is None
