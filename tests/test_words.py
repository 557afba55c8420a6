"""Checks the words of the sources: docstrings stand alone, variables are nouns, a statement assigns one thing.

A rule holds in the rooms that are listed for it. A room is mended first, and then listed; the list only grows.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.test_architecture import Module, Sources, functions, read_sources

ROOT = Path(__file__).resolve().parent.parent
ROOMS_OF_DOCSTRINGS = ("bench", "commands", "control", "deploy", "launcher", "policy", "proxy", "runtime", "trainer")
ROOMS_OF_ASSIGNMENTS = ("bench", "commands", "control", "deploy", "launcher", "policy", "proxy", "runtime", "trainer")
ROOMS_OF_VARIABLES = ("bench", "commands", "control", "deploy", "launcher", "policy", "proxy", "runtime", "trainer")

DEPENDENT = frozenset(
    (
        *("After", "Also", "Although", "And", "As", "At", "Because", "Before", "Behind", "Beside", "Between", "But"),
        *("By", "During", "For", "From", "How", "If", "In", "Instead", "Into", "Its", "Longer", "Not", "Of", "On"),
        *("Only", "Or", "Since", "So", "Such", "Than", "Their", "Then", "Those", "Though", "Through", "To", "Unless"),
        *("Until", "What", "When", "Where", "Whether", "Which", "While", "Who", "Whom", "Whose", "Why", "With"),
        *("Within", "Without"),
    )
)
"""First words of a docstring that lean on its name or on the line above: it could not be read alone in an index."""
PARTICIPLES = frozenset(
    (
        *(
            "asked",
            "chosen",
            "doing",
            "done",
            "found",
            "given",
            "gone",
            "heard",
            "held",
            "kept",
            "known",
            "left",
            "lost",
        ),
        *("made", "named", "said", "seen", "sent", "shown", "started", "stopping", "taken", "told", "used", "waiting"),
        *("wanted", "written"),
    )
)
"""Names that say what happened to a value, not what it is."""
MAX_PACKED_PER_FUNCTION = 1 / 100


def docstrings(module: Module) -> Iterator[ast.Constant]:
    """Yield the strings that document the module, its classes, functions and variables."""
    for node in module.nodes:
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str()) as constant):
                    yield constant


def docstrings_stand_alone(sources: Sources) -> list[str]:
    """A docstring begins with a verb, or is a noun phrase."""
    return [
        module.at(constant, f"{first!r}: begin with a verb, or with a noun phrase that stands alone")
        for module in sources.values()
        for constant in docstrings(module)
        for first in (str(constant.value).split() or ("",))[:1]
        if first.strip("`\"'.,:;") in DEPENDENT
    ]


def variables_are_nouns(sources: Sources) -> list[str]:
    """A parameter or local variable is named after what it is."""
    problems: set[str] = set()
    for module in sources.values():
        for node in (node for function in functions(module) for node in ast.walk(function)):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name.strip("_") in PARTICIPLES:
                    problems.add(module.at(node, f"{name!r} is a participle: name the thing"))
    return sorted(problems)


def statements_assign_one_thing(sources: Sources) -> list[str]:
    """At most one of 100 functions may assign two values in one statement: where the pair is one thing."""
    packed: dict[str, list[str]] = {}
    count: Counter[str] = Counter()
    for module in sources.values():
        room = module.name.partition(".")[0]
        count[room] += sum(1 for _ in functions(module))
        packed.setdefault(room, []).extend(
            module.at(node, "two values in one statement: write a line for each")
            for node in module.nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
            if isinstance(node.value, ast.Tuple)
        )
    return [
        line for room, lines in packed.items() if len(lines) > count[room] * MAX_PACKED_PER_FUNCTION for line in lines
    ]


Rule = Callable[[Sources], list[str]]
RULES: tuple[tuple[Rule, tuple[str, ...]], ...] = (
    (docstrings_stand_alone, ROOMS_OF_DOCSTRINGS),
    (statements_assign_one_thing, ROOMS_OF_ASSIGNMENTS),
    (variables_are_nouns, ROOMS_OF_VARIABLES),
)


@pytest.mark.parametrize(("rule", "rooms"), RULES, ids=[rule.__name__ for rule, _ in RULES])
def test_sources_keep_to_the_words(rule: Rule, rooms: tuple[str, ...]) -> None:
    problems = rule(read_sources(ROOT, rooms))
    assert not problems, "\n" + "\n".join(problems)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (docstrings_stand_alone, '"""What a module holds."""'),
        (docstrings_stand_alone, 'def f():\n    """Of the caller."""'),
        (docstrings_stand_alone, 'class A:\n    x = 1\n    """`As` it is."""'),
        (docstrings_stand_alone, 'async def f():\n    """Whether it is so."""'),
        (statements_assign_one_thing, "def f():\n    a, b = 1, 2"),
        (variables_are_nouns, "def f():\n    found = 1"),
        (variables_are_nouns, "def f(*, given): ..."),
    ],
)
def test_breach_is_reported(rule: Rule, text: str) -> None:
    assert rule({"bench.a": Module("bench.a", "bench/a.py", text, False)}) != []


def test_verbs_nouns_and_unpacked_results_are_allowed() -> None:
    text = '"""Sends events."""\ndef f(x):\n    """Return it."""\n    a, b = x\n    """A pair."""\n    return lambda: a'
    sources = {"bench.a": Module("bench.a", "bench/a.py", text, False)}
    assert [problem for rule, _ in RULES for problem in rule(sources)] == []
