"""Every path in the documents exists, the drawing of the source tree lists each folder, no file is half merged.

The drawing is in docs/architecture.md#the-source-tree.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    (
        *ROOT.glob("*.md"),
        *(ROOT / "bench").glob("*.md"),
        *(path for top in ("docs", "deploy") for path in (ROOT / top).rglob("*.md")),
    )
)
PACKAGES = ("policy", "proxy", "control", "launcher", "commands", "trainer", "runtime", "clients", "deploy", "tests", "bench")
NAMED = re.compile(rf"(?<![\w/.@:-])((?:{'|'.join((*PACKAGES, 'docs'))})/(?:[\w.-]+/)*(?:[\w-]+\.\w+)?)(?![\w/*{{<])")
DRAWN = re.compile(r"^( *)([\w-]+)/(?= |$)", re.MULTILINE)


CONFLICT_MARKER = r"^(<<<<<<<|>>>>>>>) "


def conflict_markers(directory: Path) -> list[str]:
    """`path:line:text` of each conflict marker of git in the tracked text files."""
    words = ("git", "grep", "--no-color", "--full-name", "-I", "-n", "-E", CONFLICT_MARKER)
    result = subprocess.run(words, cwd=directory, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), result.stderr  # 1: none
    return result.stdout.splitlines()


def paths_in(text: str) -> set[str]:
    """The repository paths that a text names; folders end in a slash."""
    return set(NAMED.findall(text))


def drawn(text: str) -> list[str]:
    """The folders of an indented drawing, in its order."""
    paths: list[str] = []
    above: list[str] = []
    for indent, name in DRAWN.findall(text):
        above[len(indent) // 2 :] = [name]
        paths.append("/".join(above))
    return paths


def folders(root: Path) -> Iterator[str]:
    """Each folder below the packages with files in it or below it, except caches."""
    for package in PACKAGES:
        for path in (root / package, *(root / package).rglob("*/")):
            files = (file for file in path.rglob("*") if file.is_file() and file.parent.name != "__pycache__")
            if path.name != "__pycache__" and any(files):
                yield str(path.relative_to(root))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_named_in_documents_exist(document: Path) -> None:
    assert [name for name in sorted(paths_in(document.read_text())) if not (ROOT / name).exists()] == []


def test_source_tree_drawing_lists_each_folder_once() -> None:
    section = (ROOT / "docs/architecture.md").read_text().partition("## The source tree")[2]
    drawing = drawn(section.split("```")[1])
    assert len(drawing) == len(set(drawing))
    assert sorted(drawing) == sorted(folders(ROOT))


def test_no_tracked_file_has_a_conflict_marker() -> None:
    assert conflict_markers(ROOT) == []


def test_conflict_markers_are_found_in_tracked_text(tmp_path: Path) -> None:
    texts = {"half": "a\n<<<<<<< HEAD\nb\n=======\nc\n>>>>>>> side\n", "whole": " <<<<<<< a\n<<<<<<<<< b\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert conflict_markers(tmp_path) == ["half:2:<<<<<<< HEAD", "half:6:>>>>>>> side"]


def test_paths_are_found_in_prose_and_in_code() -> None:
    text = (
        "See `proxy/app.py`, docs/reference/limits.md#admission, `tests/fakes/` and `-m bench.run`.\nbench/RESULTS.md\n"
    )
    assert paths_in(text) == {"proxy/app.py", "docs/reference/limits.md", "tests/fakes/", "bench/RESULTS.md"}
    assert paths_in("https://example.com/docs/page.html and docker/proxy/app.py and `take/settle`") == set()


def test_drawing_is_parsed_by_its_indentation() -> None:
    assert drawn("proxy/    serves\n  edges/  sockets\n    http/\n  stages/\ntests/\n") == [
        "proxy",
        "proxy/edges",
        "proxy/edges/http",
        "proxy/stages",
        "tests",
    ]


def test_path_check_reads_at_least_the_main_documents() -> None:
    names = {str(document.relative_to(ROOT)) for document in DOCUMENTS}
    assert {"README.md", "docs/architecture.md", "docs/reference/limits.md", "bench/NOTES.md"} <= names
