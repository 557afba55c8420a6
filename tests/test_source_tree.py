"""Every path in the documents exists, and the drawing of the source tree lists each folder.

The drawing is in docs/architecture.md#the-source-tree.
"""

import re
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
PACKAGES = ("policy", "proxy", "control", "launcher", "commands", "trainer", "runtime", "deploy", "tests", "bench")
NAMED = re.compile(rf"(?<![\w/.@:-])((?:{'|'.join((*PACKAGES, 'docs'))})/(?:[\w.-]+/)*(?:[\w-]+\.\w+)?)(?![\w/*{{<])")
DRAWN = re.compile(r"^( *)([\w-]+)/(?= |$)", re.MULTILINE)


def paths_in(text: str) -> set[str]:
    """The repository paths that a text names; folders end in a slash."""
    return set(NAMED.findall(text))


def drawn(text: str) -> list[str]:
    """The folders of an indented drawing, in its order."""
    found: list[str] = []
    above: list[str] = []
    for indent, name in DRAWN.findall(text):
        above[len(indent) // 2 :] = [name]
        found.append("/".join(above))
    return found


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
