"""Archives as people push them, and as somebody makes them who wants to harm the trainer.

See docs/reference/training.md#uploads.
"""

import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from policy.training.artifacts import Artifact, ArtifactPart
from runtime.object_store import ObjectStore
from trainer.backend import ArtifactError, BackendAwayError
from trainer.edges.artifacts import Artifacts, archive, unpacking


def member(name: str, content: bytes = b"", **changes: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in changes.items():
        setattr(info, field, value)
    return info, content


def tar(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:", format=format) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


class Place:
    """A store with one archive in parts, and a node's directory."""

    def __init__(self, root: Path) -> None:
        self.store = f"file://{root}/store"
        self.node = root / "node-0"
        self.node.mkdir()

    def artifact(self, content: bytes, part_bytes: int = 700) -> Artifact:
        parts = list[ArtifactPart]()
        for number, at in enumerate(range(0, len(content), part_bytes)):
            part = content[at : at + part_bytes]
            ObjectStore(self.store).write(f"uploads/{number}", len(part), iter([part]))
            parts.append(ArtifactPart(f"uploads/{number}", len(part), hashlib.sha256(part).hexdigest()))
        return Artifact("upload_1.tar", tuple(parts))

    async def unpack(self, content: bytes) -> None:
        await Artifacts(self.store).unpack([self.artifact(content)], self.node, "ws")

    @property
    def files(self) -> dict[str, bytes]:
        paths = [path for path in self.node.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.node)): path.read_bytes() for path in paths}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


LONG = "a" * 150 + "/" + "b" * 200


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
async def test_files_directories_and_links_are_unpacked(place: Place, format: int) -> None:
    content = tar(
        member("./train.py", b"print()", mode=0o4755),
        member("empty/", type=tarfile.DIRTYPE),
        member("data/x.txt", b"x" * 3000),
        member("data/up", type=tarfile.SYMTYPE, linkname="../train.py"),
        member("same.txt", type=tarfile.LNKTYPE, linkname="data/x.txt"),
        member(LONG, "é".encode()),
        format=format,
    )
    await place.unpack(content)
    x = b"x" * 3000
    expected = {"train.py": b"print()", "data/x.txt": x, "data/up": b"print()", "same.txt": x, LONG: "é".encode()}
    assert place.files == expected
    assert (place.node / "empty").is_dir()
    assert os.readlink(place.node / "data/up") == "../train.py"
    assert (place.node / "train.py").stat().st_mode & 0o7777 == 0o755
    assert (place.node / "data/x.txt").stat().st_mode & 0o7777 == 0o644


async def test_gzip_is_unpacked(place: Place) -> None:
    await place.unpack(gzip.compress(tar(member("a", b"x" * 5_000_000))))
    assert place.files == {"a": b"x" * 5_000_000}


async def test_later_artifact_replaces_files_of_an_earlier_one(place: Place) -> None:
    await place.unpack(tar(member("a", b"old"), member("b", type=tarfile.SYMTYPE, linkname="a")))
    await place.unpack(tar(member("b", b"new")))
    assert place.files == {"a": b"old", "b": b"new"}


async def test_files_belong_to_the_owner_of_the_directory(place: Place) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(place.node, 12345, 12346)
    await place.unpack(tar(member("d/a", b"x"), member("d/l", type=tarfile.SYMTYPE, linkname="a")))
    for path in ("d", "d/a", "d/l"):
        state = (place.node / path).lstat()
        assert (state.st_uid, state.st_gid) == (12345, 12346)


def sparse() -> bytes:
    """A file of 2 TiB that is one hole, as GNU tar writes it."""
    info = member("hole", type=tarfile.GNUTYPE_SPARSE)[0]
    return tar((info, b""), format=tarfile.GNU_FORMAT)


def huge_header() -> bytes:
    """A header that says that 8 GiB of attributes follow."""
    info = member("a", type=tarfile.XHDTYPE)[0]
    info.size = 8 * 1024**3 - 1
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


BAD = {
    "parent": tar(member("../x", b"a")),
    "inner parent": tar(member("a/../../x", b"a")),
    "absolute": tar(member("/tmp/x", b"a")),
    "absolute link": tar(member("l", type=tarfile.SYMTYPE, linkname="/etc")),
    "link to the parent": tar(member("d/l", type=tarfile.SYMTYPE, linkname="../..")),
    "link by a link": tar(
        member("a/l", type=tarfile.SYMTYPE, linkname="."),
        member("m", type=tarfile.SYMTYPE, linkname="a/l/../../x"),
    ),
    "through a link": tar(member("l", type=tarfile.SYMTYPE, linkname="."), member("l/x", b"a")),
    "hard link outside": tar(member("l", type=tarfile.LNKTYPE, linkname="../outside")),
    "hard link to a link": tar(
        member("s", type=tarfile.SYMTYPE, linkname="missing"), member("l", type=tarfile.LNKTYPE, linkname="s")
    ),
    "device": tar(member("d", type=tarfile.CHRTYPE, devmajor=1, devminor=3)),
    "pipe": tar(member("p", type=tarfile.FIFOTYPE)),
    "sparse": sparse(),
    "control characters": tar(member("a\nb", b"a")),
    "deep": tar(member("/".join("d" * 100), b"a")),
    "no archive": b"x" * 2000,
    "nothing": b"",
    "huge header": huge_header(),
    "many headers": (member("a", type=tarfile.GNUTYPE_LONGNAME)[0].tobuf() * 3000),
    "cut off in a file": tar(member("a", b"x" * 5000))[:3000],
    "cut off in a header": tar(member("a", b"x" * 100), member("b", b"y"))[:1200],
    "broken header": tar(member("a", b"x" * 100))[:1024] + b"x" * 512 + bytes(1024),
    "broken gzip": gzip.compress(tar(member("a", os.urandom(3000))))[:1000] + b"x" * 1000,
}


@pytest.mark.parametrize("kind", BAD)
async def test_bad_archive_is_refused_and_touches_nothing_outside(place: Place, kind: str) -> None:
    outside = place.node.parent / "outside"
    outside.write_text("secret")
    before = sorted(path for path in place.node.parent.iterdir() if path.name != "store")
    with pytest.raises(ArtifactError, match=r"artifact upload_1\.tar cannot be unpacked"):
        await place.unpack(BAD[kind])
    assert sorted(path for path in place.node.parent.iterdir() if path.name != "store") == before
    assert outside.stat().st_nlink == 1


async def test_directory_that_became_a_link_is_not_followed(place: Place) -> None:
    elsewhere = place.node.parent / "elsewhere"
    elsewhere.mkdir()
    (place.node / "d").symlink_to(elsewhere)
    with pytest.raises(ArtifactError):
        await place.unpack(tar(member("d/x", b"a")))
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(("name", "value"), [("MAX_UNPACKED_BYTES", 100_000), ("MAX_MEMBERS", 1)])
async def test_bomb_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> None:
    monkeypatch.setattr(unpacking, name, value)
    with pytest.raises(ArtifactError, match="more than"):
        await place.unpack(gzip.compress(tar(member("a", b"x"), member("b", bytes(200_000)))))
    assert "b" not in place.files


def test_gzip_is_unpacked_in_small_pieces() -> None:
    pieces = archive._unzipped(iter([gzip.compress(bytes(50_000_000))]))
    assert max(map(len, pieces)) <= 1024 * 1024


async def test_changed_and_lost_parts_are_found(place: Place) -> None:
    artifact = place.artifact(tar(member("a", b"x" * 5000)))
    store = ObjectStore(place.store)
    artifacts = Artifacts(place.store)
    for content in (b"y" * 700, b"y" * 699, b"y" * 701):
        store.write("uploads/3", len(content), iter([content]))
        with pytest.raises(ArtifactError, match="damaged"):
            await artifacts.unpack([artifact], place.node, "ws")
    store.remove_file("uploads/3")
    with pytest.raises(ArtifactError, match="not in the checkpoint store"):
        await artifacts.unpack([artifact], place.node, "ws")


async def test_part_behind_the_archives_end_is_verified_too(place: Place) -> None:
    artifact = place.artifact(tar(member("a", b"x")), part_bytes=4096)
    ObjectStore(place.store).write("uploads/2", 2048, iter([b"y" * 2048]))
    with pytest.raises(ArtifactError, match="damaged"):
        await Artifacts(place.store).unpack([artifact], place.node, "ws")


async def test_store_that_is_away_is_no_fault_of_the_artifact(place: Place) -> None:
    artifact = place.artifact(tar(member("a", b"x")))
    with pytest.raises(BackendAwayError):
        await Artifacts("no-such-protocol://x").unpack([artifact], place.node, "ws")
