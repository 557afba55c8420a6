"""Every citation in code, tests, Lua and documents resolves inside the repository.

See docs/reference/README.md#how-to-cite. This file quotes broken citations on purpose, so it does not read itself.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
KINDS = {".py", ".lua", ".md", ".txt", ".toml", ".yml", ".yaml", ".sh", ".mako"}
FOLDERS = [folder for folder in ROOT.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
FILES = sorted(
    path
    for paths in (ROOT.glob("*"), *(folder.rglob("*") for folder in FOLDERS))
    for path in paths
    if path.is_file() and (path.suffix in KINDS or path.name == "Makefile") and path != Path(__file__).resolve()
)
DOCUMENTS = [path for path in FILES if path.suffix == ".md"]

HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CITED = re.compile(r"(?<![\w/])(docs/[\w./-]+\.md)(?:#([\w-]+))?")
LINKED = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
RECORD = re.compile(r"\b[Dd]ecisions?[\s#]+(\d{4})\b")
ELSEWHERE = {
    "a page that is not here": re.compile(r"(?<![\w/.\[-])(?<!\]\()([\w-]+\.md)\b"),
    "a section of the specification": re.compile(r"\b[Ss]pec(?:ification)?,?[\s#(]+\d"),
    "a section of the decisions": re.compile(r"\b[Dd]ecisions?,?[\s#(]+(?:section )?(?!\d{4}\b)\d"),
    "a heading without its page": re.compile(r'\b(?:architecture|decisions?|limits|spec),? "[A-Z]'),
    "a folder that is not here": re.compile(r"(?<![\w/])shared/\w"),
    "a section sign (an RFC is cited as `RFC 9110 7.6.1`)": re.compile("§"),
    "an issue": re.compile(r"\b[Ii]ssue\s+#?\d"),
}


@cache
def anchors(document: Path) -> set[str]:
    """The slugs that GitHub gives the document's headings: lower case, no punctuation, a hyphen for each space."""
    names: set[str] = set()
    for heading in HEADING.findall(FENCED.sub("", document.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = next(n for n in range(99) if (f"{slug}-{n}" if n else slug) not in names)
        names.add(f"{slug}-{number}" if number else slug)
    return names


def broken_target(document: Path, anchor: str) -> str:
    """The problem with a citation of `anchor` in `document`; empty if it is valid."""
    if not document.exists():
        return "no such file"
    return "no such anchor" if anchor and document.suffix == ".md" and anchor not in anchors(document) else ""


def broken_citations(text: str) -> Iterator[str]:
    """Every citation in `text` that resolves to nothing or leaves the repository."""
    for path, anchor in CITED.findall(text):
        if fault := broken_target(ROOT / path, anchor):
            yield f"{path}#{anchor}: {fault}"
    for number in RECORD.findall(text):
        if not list((ROOT / "docs/decisions").glob(f"{number}-*.md")):
            yield f"decision {number}: no such record"
    for what, pattern in ELSEWHERE.items():
        for hit in pattern.finditer(text):
            if not (hit.re.groups and (ROOT / hit.group(1)).exists()):
                yield f"{hit.group()!r} cites {what}"


def broken_links(document: Path) -> Iterator[str]:
    """Every link of the document to a file or an anchor that is not there."""
    for path, anchor in LINKED.findall(FENCED.sub("", document.read_text())):
        target = (document.parent / path) if path else document
        if fault := broken_target(target, anchor):
            yield f"{target}#{anchor}: {fault}"


def by_file(paths: Iterable[Path], faults_of: Callable[[Path], Iterator[str]]) -> dict[str, list[str]]:
    """The faults of each file that has some. Thousands of tests, one for each file, would take most of their time."""
    return {str(path.relative_to(ROOT)): faults for path in paths if (faults := list(faults_of(path)))}


def test_citations_resolve() -> None:
    assert not by_file(FILES, lambda path: broken_citations(path.read_text()))


def test_links_of_documents_resolve() -> None:
    assert not by_file(DOCUMENTS, broken_links)


@pytest.mark.parametrize(
    "text",
    [
        "(spec 2.1, 4.2)",
        "the specification (2.1)",
        "(decisions 5)",
        "decisions.md section 11",
        '(limits.md, "Data")',
        '(architecture "Snapshot")',
        "as shared/style.md says",
        "RFC 9110 §7.6.1",
        "(issue 5)",
        "see decision 0999",
        "see decision\n# 0999",
        "docs/reference/limits.md#no-such-heading",
        "docs/reference/no-such-page.md",
    ],
)
def test_broken_citation_is_reported(text: str) -> None:
    assert list(broken_citations(text))


@pytest.mark.parametrize(
    "text",
    [
        "docs/reference/limits.md#admission",
        "decision 0014",
        "RFC 9110 7.6.1",
        "README.md",
        "[limits.md](limits.md#admission)",
    ],
)
def test_valid_citation_passes(text: str) -> None:
    assert not list(broken_citations(text))


def test_files_of_every_kind_are_read() -> None:
    read = {path.suffix for path in FILES}
    assert {".py", ".lua", ".md", ".txt", ".toml"} <= read
    assert len(FILES) > 300
