"""Builds one commit twice with `python -m deploy.release`, under differing conditions, and verifies it as documented.

The commit is of this tree as it stands, changes included but without its tests, in a repository of its own.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no annotations
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from deploy.release.__main__ import ROOT
from deploy.release.artefacts import LOCKS
from deploy.release.clients import NODE_MODULES
from deploy.release.release_notes import UNRELEASED
from deploy.release.signing import KeyFileError, read_key
from tests.deploy.provenance_schema import STATEMENT_WITH_PROVENANCE

pytestmark = [
    pytest.mark.skipif(not NODE_MODULES.exists(), reason="make toolchain"),
    pytest.mark.timeout(1200),
]
"""Two releases are built (by the soak two more), each of which generates and compiles the client packages."""
COMMITTED_AT = 1_780_000_001
VERSION = "1.2.3"
BUILDER = "https://builds.example.com/tollgate"
REPOSITORY = "https://git.example.com/tollgate"
GIT = {
    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.com", "GIT_AUTHOR_DATE": f"{COMMITTED_AT} +0200",
    "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.com", "GIT_COMMITTER_DATE": f"{COMMITTED_AT} +0200",
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
}  # fmt: skip
ORIGIN = ("--builder", BUILDER, "--repository", REPOSITORY)
SECRET = Ed25519PrivateKey.generate()


def pem(key: Any, passphrase: bytes | None = None) -> bytes:
    protection = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection))


def git(folder: Path, *words: str, **settings: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(
        command, env=os.environ | GIT | settings, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit_of_this_tree(to: Path) -> None:
    places = (".", ":!tests", ":!bench")
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *places).split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to / name)
    changelog = (to / "CHANGELOG.md").read_text(encoding="utf-8")
    (to / "CHANGELOG.md").write_text(changelog.replace(f"## {UNRELEASED}\n", f"## {VERSION} (ä)\n"), encoding="utf-8")
    project = (to / "pyproject.toml").read_text(encoding="utf-8")
    (to / "pyproject.toml").write_text(re.sub(r'(?m)^version = ".*"$', f'version = "{VERSION}"', project), "utf-8")
    git(to, "init", "--quiet")
    git(to, "add", "--all")
    git(to, "commit", "--quiet", "--message", "Release")


def make_release(tree: Path, *flags: str, umask: int = 0o022, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run the release of `tree` with this interpreter, as `make release` would."""
    environment = os.environ | GIT | settings
    command = [sys.executable, "-m", "deploy.release", *flags]
    return subprocess.run(command, cwd=tree, env=environment, umask=umask, capture_output=True, text=True, check=False)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def signed_by(key: Path) -> tuple[str, ...]:
    return ("--sign-key", str(key), *ORIGIN)


@dataclass(frozen=True)
class Builds:
    """A repository and its clone, and what was built of their one commit: signed in the one, unsigned in the other."""

    repository: Path
    elsewhere: Path
    first: Path
    second: Path
    key: Path

    def make_elsewhere(self, to: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
        """Build in the clone, under conditions that differ from the repository's."""
        other = {"TZ": "Pacific/Auckland", "PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": "1", "USER": "other"}
        other |= {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "HOME": str(self.key.parent)}
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as other_file_system:
            return make_release(self.elsewhere, *flags, "--to", str(to), umask=0o077, TMPDIR=other_file_system, **other)


def commit_elsewhere(repository: Path, to: Path) -> None:
    """Clone as someone with other habits would: line ends of Windows, new times, rubbish that git ignores."""
    git(to.parent, "clone", "--quiet", "--config", "core.autocrlf=true", str(repository), str(to))
    assert b"\r\n" in (to / "README.md").read_bytes()
    for path in to.rglob("*.py"):
        os.utime(path, (COMMITTED_AT + 86_400, COMMITTED_AT + 86_400))
    (to / "policy/build").mkdir()
    (to / "policy/build/__init__.py").write_text("ignored by git, and nothing of the release")
    assert git(to, "status", "--porcelain") == ""


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    folder = tmp_path_factory.mktemp("release")
    key = folder / "release.pem"
    key.write_bytes(pem(SECRET))
    repository = folder / "repository"
    repository.mkdir()
    commit_of_this_tree(repository)
    elsewhere = folder / "a place with spaces, and ä" / "clone"
    elsewhere.parent.mkdir()
    commit_elsewhere(repository, elsewhere)
    new_builds = Builds(repository, elsewhere, repository / "dist", folder / "second", key)
    first = make_release(repository, *signed_by(key), TZ="UTC", PYTHONHASHSEED="0")
    second = new_builds.make_elsewhere(new_builds.second, *ORIGIN)
    for result in (first, second):
        assert_made(result)
    assert "release: not signed" in second.stdout
    return new_builds


def assert_made(result: "subprocess.CompletedProcess[str]") -> None:
    assert result.returncode == 0, result.stdout + result.stderr
    assert "PRIVATE KEY" not in result.stdout + result.stderr


def test_one_commit_gives_the_same_bytes_under_other_conditions_and_without_the_key(builds: Builds) -> None:
    first = files(builds.first)
    second = files(builds.second)
    assert {name.replace(VERSION, "V") for name in first} >= {
        "tollgate-V-py3-none-any.whl", "tollgate-V.tar.gz", "tollgate-V.requirements.lock", "tollgate-V.cdx.json",
        "tollgate-V.notes.md", "tollgate-V.intoto.jsonl", "SHA256SUMS", "SHA256SUMS.sig",
    }  # fmt: skip
    different = {name for name in first | second if first.get(name) != second.get(name)}
    by_the_key = {f"tollgate-{VERSION}.intoto.jsonl", "SHA256SUMS.sig"}
    assert different == {*by_the_key, f"tollgate-{VERSION}.provenance.json"}
    assert not by_the_key & second.keys()
    assert json.loads(second[f"tollgate-{VERSION}.provenance.json"]) == statement_of(builds.first)


@pytest.mark.soak
def test_signatures_are_the_same_under_other_conditions(builds: Builds, tmp_path: Path) -> None:
    assert_made(builds.make_elsewhere(tmp_path / "signed", *signed_by(builds.key)))
    assert files(tmp_path / "signed") == files(builds.first)


@pytest.mark.soak
def test_checksums_are_the_same_for_whoever_names_no_origin(builds: Builds, tmp_path: Path) -> None:
    assert_made(make_release(builds.repository, "--to", str(tmp_path / "nameless")))
    nameless = files(tmp_path / "nameless")
    assert nameless["SHA256SUMS"] == files(builds.first)["SHA256SUMS"]
    provenance = json.loads(nameless[f"tollgate-{VERSION}.provenance.json"])
    assert provenance["subject"]
    jsonschema.validate(provenance, STATEMENT_WITH_PROVENANCE)


def test_no_archive_holds_another_time_than_the_commits(builds: Builds) -> None:
    zipped = datetime.fromtimestamp(COMMITTED_AT // 2 * 2, UTC).timetuple()[:6]
    for path in builds.first.glob("*.whl"):
        assert {member.date_time for member in zipfile.ZipFile(path).infolist()} == {zipped}, path.name
    for path in builds.first.glob("*.tar.gz"):
        assert int.from_bytes(path.read_bytes()[4:8], "little") == COMMITTED_AT, path.name
        with tarfile.open(path) as archive:
            assert {member.mtime for member in archive.getmembers()} == {COMMITTED_AT}, path.name


def test_wheel_holds_nothing_that_git_ignores(builds: Builds) -> None:
    (wheel,) = builds.second.glob("tollgate-*.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("policy/build/")]


def statement_of(folder: Path) -> dict[str, Any]:
    (line,) = (folder / f"tollgate-{VERSION}.intoto.jsonl").read_text().splitlines()
    document: dict[str, Any] = json.loads(base64.b64decode(json.loads(line)["payload"]))
    return document


def test_provenance_has_the_published_shape_and_names_all_files(builds: Builds) -> None:
    statement = statement_of(builds.first)
    jsonschema.validate(statement, STATEMENT_WITH_PROVENANCE)
    lines = (builds.first / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert {one["name"]: one["digest"]["sha256"] for one in statement["subject"]} == sums
    commit = git(builds.repository, "rev-parse", "HEAD")
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {"repository": REPOSITORY, "ref": commit}
    source, *locks = definition["resolvedDependencies"]
    assert source == {"name": "source", "uri": f"git+{REPOSITORY}@{commit}", "digest": {"gitCommit": commit}}
    assert {one["name"] for one in locks} == {*LOCKS}
    assert statement["predicate"]["runDetails"] == {"builder": {"id": BUILDER}}
    (path,) = builds.second.glob("*.provenance.json")
    jsonschema.validate(json.loads(path.read_text()), STATEMENT_WITH_PROVENANCE)


def documented_commands() -> str:
    """Return the commands of docs/deploying.md that verify a release."""
    section = (ROOT / "docs/deploying.md").read_text().partition("\n### Verify a release\n")[2].partition("\n## ")[0]
    return "\n".join(re.findall(r"^```\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)).replace("VERSION", VERSION)


def verify(folder: Path) -> "subprocess.CompletedProcess[str]":
    command = ["bash", "-euo", "pipefail", "-c", documented_commands()]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def download(builds: Builds, tmp_path: Path) -> Path:
    folder = tmp_path / "download"
    shutil.copytree(builds.first, folder)
    public = SECRET.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "release.pub").write_bytes(public)
    return folder


def test_documented_commands_verify_a_release(download: Path) -> None:
    result = verify(download)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("Signature Verified Successfully") == 2
    assert f"tollgate-{VERSION}-py3-none-any.whl: OK" in result.stdout
    assert BUILDER in (download / "provenance.json").read_text()


def append_a_byte(content: bytes) -> bytes:
    return content + b"\n"


def change_a_digest(content: bytes) -> bytes:
    return content.replace(content[:64], b"0" * 64)


def change_the_signature(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


def change_envelope(member: str) -> Callable[[bytes], bytes]:
    """Change what an envelope says, and leave its signature."""

    def change(content: bytes) -> bytes:
        document = json.loads(content)
        if member == "builder":
            payload = base64.b64decode(document["payload"]).replace(BUILDER.encode(), b"https://other.example.com/x")
            document["payload"] = base64.b64encode(payload).decode()
        elif member == "sig":
            document["signatures"][0]["sig"] = base64.b64encode(bytes(64)).decode()
        else:
            document[member] = "application/json"
        return json.dumps(document).encode()

    return change


def another_key(_: bytes) -> bytes:
    other = Ed25519PrivateKey.generate().public_key()
    return other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    ("ending", "change"),
    [
        (f"tollgate-{VERSION}-py3-none-any.whl", append_a_byte),
        (f"tollgate-{VERSION}.tar.gz", append_a_byte),
        (f"tollgate_client-{VERSION}.tar.gz", append_a_byte),
        (f"tollgate-client-{VERSION}.tgz", append_a_byte),
        (".cdx.json", append_a_byte),
        ("SHA256SUMS", change_a_digest),
        ("SHA256SUMS", append_a_byte),
        ("SHA256SUMS.sig", change_the_signature),
        (".intoto.jsonl", change_envelope("builder")),
        (".intoto.jsonl", change_envelope("payloadType")),
        (".intoto.jsonl", change_envelope("sig")),
        ("release.pub", another_key),
    ],
)
def test_documented_commands_fail_for_a_changed_file(
    download: Path, ending: str, change: Callable[[bytes], bytes]
) -> None:
    (path,) = (path for path in download.iterdir() if path.name.endswith(ending))
    path.write_bytes(change(path.read_bytes()))
    assert verify(download).returncode != 0


@pytest.mark.parametrize(
    ("content", "passphrase", "message"),
    [
        (b"", None, "is no private key in PEM"),
        (b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n", None, "openssl genpkey"),
        (pem(SECRET, b"right"), None, "is encrypted: set RELEASE_KEY_PASSPHRASE"),
        (pem(SECRET, b"right"), "wrong", "passphrase of RELEASE_KEY_PASSPHRASE"),
        (pem(generate_private_key(SECP256R1())), None, "is not of the type Ed25519"),
        (None, None, "cannot read the key"),
    ],
)
def test_unusable_key_is_named_and_never_printed(
    tmp_path: Path, content: bytes | None, passphrase: str | None, message: str
) -> None:
    path = tmp_path / "release.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeyFileError, match=message) as refusal:
        read_key(path, passphrase)
    assert str(path) in str(refusal.value)
    assert not {line for line in (content or b"").decode().splitlines() if line in str(refusal.value) and line}


def test_encrypted_key_opens_with_its_passphrase(tmp_path: Path) -> None:
    path = tmp_path / "release.pem"
    path.write_bytes(pem(SECRET, b"right"))
    assert read_key(path, "right").public_key() == SECRET.public_key()
    path.write_bytes(pem(SECRET))
    assert read_key(path, "set for another key").public_key() == SECRET.public_key()


def test_refused_release_leaves_the_last_one_alone(builds: Builds) -> None:
    before = files(builds.first)
    (builds.repository / "stray").write_text("")
    missing = ("--sign-key", "/nowhere/release.pem", "--builder", BUILDER)
    refusals = {"the tree has changes": (), "cannot read the key": missing, "--sign-key needs --builder": missing[:2]}
    refusals["leave user and password out"] = ("--repository", "https://u:p@git.example.com/x")
    for message, flags in refusals.items():
        result = make_release(builds.repository, *flags)
        assert result.returncode != 0
        assert message in result.stderr
        assert "Traceback" not in result.stderr
    (builds.repository / "stray").unlink()
    assert files(builds.first) == before


def test_directory_that_is_no_release_is_never_emptied(builds: Builds, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("the only copy")
    result = make_release(builds.repository, "--to", str(tmp_path))
    assert "holds no earlier release to replace" in result.stderr
    assert (tmp_path / "thesis.txt").read_text() == "the only copy"


def test_signing_is_refused_while_changes_are_unreleased(builds: Builds, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(builds.repository), str(clone))
    changelog = (clone / "CHANGELOG.md").read_text(encoding="utf-8")
    (clone / "CHANGELOG.md").write_text(changelog.replace(f"## {VERSION}", f"## {UNRELEASED}", 1), encoding="utf-8")
    git(clone, "commit", "--quiet", "--all", "--message", "Write")
    result = make_release(clone, "--sign-key", str(builds.key), "--builder", BUILDER)
    assert "name it after the version" in result.stderr
