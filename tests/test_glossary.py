"""Checks that names keep to docs/glossary.md: a word that stands alone in a class, function or file has one meaning.

A row's third column lists the rooms where its words stand alone. Anywhere else a name says more: `DeliveryAttempt`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.test_architecture import Module, Sources, read_sources

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| (?!word )([^|`]+) \| [^|]+ \| ([^|]*) \|$", re.MULTILINE)
WORD_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")

Rooms = dict[str, set[str]]


def read_glossary(text: str) -> Rooms:
    """Return the rooms of each word: paths as of the root, none if the word never stands alone."""
    rooms: Rooms = {}
    for words, places in ROW.findall(text):
        for word in re.sub(r"\([^)]*\)", "", words).split(","):
            rooms.setdefault(word.strip(), set()).update(re.findall(r"`([^`]+)`", places))
    return rooms


def singular(word: str) -> str:
    return re.sub(r"ies$", "y", word) if word.endswith("ies") else re.sub(r"(?<=[^s])s$", "", word)


def word_of(name: str) -> str:
    """Return a name as the glossary writes it: `_WorkerSlots` is "worker slot"."""
    *first, last = [word.lower() for word in WORD_OF_NAME.findall(name)] or [""]
    return " ".join((*first, singular(last)))


def names(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of the file and of its classes and functions."""
    yield 1, Path(module.path).stem
    for node in module.nodes:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name


def room_of(path: str, rooms: set[str]) -> str | None:
    return next((room for room in rooms if f"{path.removesuffix('.py')}/".startswith(f"{room}/")), None)


def misplaced_words(sources: Sources, rooms: Rooms) -> list[str]:
    """Name the words that stand alone outside their rooms, and the rooms where none does."""
    unused = {(word, room) for word, places in rooms.items() for room in places}
    problems: list[str] = []
    for module in sources.values():
        for line, name in names(module):
            word = word_of(name)
            if word not in rooms:
                continue
            room = room_of(module.path, rooms[word])
            if room is None:
                problems.append(module.at(line, f"{name!r}: say which {word}, or use another word"))
            else:
                unused.discard((word, room))
    return problems + [f"docs/glossary.md: no name is {word!r} in {room}" for word, room in sorted(unused)]


def test_names_keep_to_the_glossary() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text()
    rooms = read_glossary(glossary)
    assert {"take", "settle", "turn", "attempt", "event", "replica"} <= rooms.keys()
    rows = [line for line in glossary.splitlines() if line.startswith("| ") and not line.startswith("| word |")]
    assert len(rows) == len(ROW.findall(glossary)), "each row has a third column"
    problems = misplaced_words(read_sources(ROOT), rooms)
    assert not problems, "\n" + "\n".join(problems)


TABLE = "| word | meaning | alone in |\n|---|---|---|\n| take, worker slot (of one) | A step. | `proxy/a`, `policy` |\n"


def problems_of(path: str, text: str, table: str = TABLE) -> list[str]:
    name = path.removesuffix(".py").replace("/", ".")
    return misplaced_words({name: Module(name, path, text, False)}, read_glossary(table))


def test_word_alone_outside_its_rooms_is_reported() -> None:
    for text in ("class Take: ...", "class A:\n    async def _take(self): ...", "def f():\n    class WorkerSlots: ..."):
        assert any("say which" in problem for problem in problems_of("proxy/b.py", text))
    assert any("say which" in problem for problem in problems_of("control/take.py", ""))
    assert any("say which" in problem for problem in problems_of("proxy/ab.py", "def take(): ..."))


def test_word_in_its_rooms_and_qualified_names_are_allowed() -> None:
    for path in ("proxy/a.py", "proxy/a/b.py", "policy/limits/take.py"):
        assert not any("say which" in problem for problem in problems_of(path, "def take_all(): ...\nclass Take: ..."))


def test_room_without_the_word_is_reported() -> None:
    table = TABLE.replace("worker slot (of one)", "worker slot")
    assert problems_of("proxy/a.py", "def take(): ...", table) == [
        "docs/glossary.md: no name is 'take' in policy",
        "docs/glossary.md: no name is 'worker slot' in policy",
        "docs/glossary.md: no name is 'worker slot' in proxy/a",
    ]
