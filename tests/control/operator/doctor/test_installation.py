"""Checks what the doctor finds in directories and URLs that it cannot use."""

from pathlib import Path

from control.edges.inspection.disk_look import look_at_disk
from control.edges.process.data_directory import DataDirectory
from control.operator.doctor.examination import examine, process_findings
from control.operator.doctor.findings import Level
from control.operator.doctor.installation import Installation

TOO_LONG = "x" * 300
"""No file system has such a name: as with a directory of another user, every look at it is an error."""


async def test_unreadable_directory_is_the_only_finding(tmp_path: Path) -> None:
    (finding,) = await examine(Installation({}, DataDirectory(tmp_path / TOO_LONG), None, None))
    assert (finding.check, finding.level) == ("data", Level.FAULT)
    assert "cannot be read (File name too long)" in finding.text


async def test_control_url_with_a_password_is_neither_asked_nor_shown(tmp_path: Path) -> None:
    for url in ("http://u:hunter2@127.0.0.1:1", "http://:hunter2@127.0.0.1:1", "127.0.0.1:1"):
        environ = {"TOLLGATE_CONTROL_URL": url}
        assert await process_findings(Installation(environ, DataDirectory(tmp_path), None, None)) == []


def test_file_in_the_place_of_a_directory_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    file.touch()
    for path in (file, file / "below"):
        assert look_at_disk(path).trouble == "Not a directory"


async def test_memory_of_journals_is_looked_at_unless_it_is_off(tmp_path: Path) -> None:
    for folder, count in ((str(tmp_path), 1), (str(tmp_path / "none"), 1), ("off", 0)):
        findings = await examine(
            Installation({"TOLLGATE_JOURNAL_MEMORY_DIR": folder}, DataDirectory(tmp_path), None, None)
        )
        assert sum(folder in finding.text for finding in findings if "journals in memory" in finding.text) == count
