"""Checks what `make release` writes: the same bits from the same sources, a bill of materials, notes, checksums."""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

from deploy.release import distributions as packages
from deploy.release.__main__ import ROOT, checksums, release
from deploy.release.bill_of_materials import bill, locked_names
from deploy.release.checkout import CheckoutError
from deploy.release.image import base_images
from deploy.release.release_notes import notes

EPOCH = 1_790_000_000
LOCK = (ROOT / "requirements.lock").read_text()


@pytest.fixture(scope="module")
def two_builds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The second one as another user might build: other umask, zone and times, from a copy without any caches."""
    folders = [tmp_path_factory.mktemp("build") for _ in range(2)]
    copy = tmp_path_factory.mktemp("copy")
    for name in packages.sources(ROOT):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
        (copy / name).chmod(0o775)
    program = (
        f"import os; os.umask(0o077); from pathlib import Path; from deploy.release.distributions import build;"
        f" build(Path({str(copy)!r}), Path({str(folders[1])!r}), {EPOCH})"
    )
    environment = os.environ | {"TZ": "Pacific/Auckland", "PYTHONPATH": str(ROOT)}
    second = subprocess.Popen([sys.executable, "-c", program], cwd="/", env=environment)
    packages.build(ROOT, folders[0], EPOCH)
    assert second.wait(120) == 0
    return folders


def test_same_sources_give_the_same_bits_elsewhere(two_builds: list[Path]) -> None:
    first, second = (checksums(folder) for folder in two_builds)
    assert first == second
    assert [line.split("  ")[1].rpartition(".")[2] for line in first.splitlines()] == ["whl", "gz"]


def test_wheel_and_sdist_hold_the_product_and_nothing_else(two_builds: list[Path]) -> None:
    (wheel,) = two_builds[0].glob("*.whl")
    (sdist,) = two_builds[0].glob("*.tar.gz")
    installed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    ours = {str(name) for name in packages.sources(ROOT) if name.parts[0] in packages.PACKAGES}
    assert installed == ours
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    packed = {member.name.partition("/")[2] for member in members if member.isfile()}
    assert ours | {*packages.FILES} <= packed
    assert {(member.uid, member.gid, member.mtime) for member in members} == {(0, 0, EPOCH)}


def test_packages_are_those_of_the_project_and_of_the_image() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    pyproject = (ROOT / "pyproject.toml").read_text()
    listed = pyproject.partition("[tool.setuptools.packages.find]")[2].partition("[")[2].partition("]")[0]
    assert [name.strip('"*, ') for name in listed.split(",")] == list(packages.PACKAGES)
    assert [name for name in packages.PACKAGES if f"\nCOPY {name} {name}\n" not in dockerfile] == []
    assert [name for name in packages.FILES if name not in dockerfile] == []


def test_image_builds_with_the_locked_setuptools() -> None:
    _, _, entry = (ROOT / "deploy/release/requirements.lock").read_text().partition("\n")
    assert entry in (ROOT / "requirements-dev.lock").read_text()


def test_bill_lists_what_the_lock_installed_here_and_no_package_of_the_tests() -> None:
    document = bill(distributions(), LOCK, EPOCH)
    names = {one["name"] for one in document["components"]}
    assert {"aiohttp", "sqlalchemy", "pyyaml"} <= names <= locked_names(LOCK)
    assert "pytest" not in names
    (product,) = (one for one in document["dependencies"] if one["ref"].startswith("pkg:pypi/tollgate@"))
    assert "aiohttp" in {ref.partition("@")[0].rpartition("/")[2] for ref in product["dependsOn"]}
    references = {one["bom-ref"] for one in document["components"]} | {product["ref"]}
    assert {ref for one in document["dependencies"] for ref in one["dependsOn"]} <= references
    assert [one["name"] for one in document["components"] if not one.get("licenses")] == []
    assert json.dumps(document) == json.dumps(bill(distributions(), LOCK, EPOCH))


def test_notes_are_the_versions_section_else_say_that_they_are_unreleased() -> None:
    changelog = "# Changelog\n\n## Unreleased\n\n- New.\n\n## 0.2.0 (2026-11-24)\n\n- Old.\n"
    assert notes(changelog, "0.2.0", "abc") == "# Tollgate 0.2.0\n\nCommit abc.\n\n- Old.\n"
    assert "unreleased changes" in notes(changelog, "0.3.0", "abc")
    with pytest.raises(LookupError, match="neither"):
        notes("# Changelog\n", "0.3.0", "abc")


def test_release_refuses_a_tree_with_changes(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "stray").write_text("")
    with pytest.raises(CheckoutError, match="stray"):
        release(tmp_path, tmp_path / "dist")


def test_checksums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    (tmp_path / "SHA256SUMS").write_text("of another build")
    assert checksums(tmp_path) == f"{hashlib.sha256(b'text').hexdigest()}  a\n"


def test_base_images_are_named_by_tag_without_an_invented_digest() -> None:
    bases = base_images((ROOT / "Dockerfile").read_text())
    assert bases
    assert not [image for image in bases.values() if "@" in image or ":" not in image]
    assert base_images("ARG A_IMAGE=a:1\nARG B=2\n") == {"A_IMAGE": "a:1"}
