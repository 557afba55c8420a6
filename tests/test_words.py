"""Checks the words of the sources: docstrings stand alone, variables are nouns, a statement assigns one thing, a log
line is a sentence with a cause.

Those of log lines hold in the product, the others everywhere.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.test_architecture import PACKAGES, Module, Sources, functions, read_sources

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (*PACKAGES, "bench", "clients", "deploy", "tests")

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
    """A parameter or variable is named after what it is."""
    problems: set[str] = set()
    for module in sources.values():
        for node in module.nodes:
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    problems |= participle(module, node, name)
    return sorted(problems)


def fields_are_nouns(sources: Sources) -> list[str]:
    """A field of a class, annotated in its body or assigned to `self`, is named after what it is."""
    problems: set[str] = set()
    for module in sources.values():
        members = [one.target for node in module.classes for one in node.body if isinstance(one, ast.AnnAssign)]
        for node in (*members, *module.nodes):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    problems |= participle(module, node, name)
                case ast.Name(id=name) if node in members:
                    problems |= participle(module, node, name)
    return sorted(problems)


def participle(module: Module, node: ast.AST, name: str) -> set[str]:
    """Return the problem, if the name is a participle."""
    is_one = name.strip("_") in PARTICIPLES
    return {module.at(node, f"{name!r} is a participle: name the thing")} if is_one else set()


def statements_assign_one_thing(sources: Sources) -> list[str]:
    """Two values are assigned in one statement in at most one of 100 functions: where the pair is one thing."""
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


LEVELS = frozenset(("debug", "info", "warning", "error", "exception", "critical", "log"))


def log_calls(module: Module) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield each call that logs, with its message. A line of the access log has members (`extra`) instead."""
    for node in module.nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=log, attr=method), args=[first, *rest]):
                receiver = ast.unparse(log)
                is_log = method in LEVELS and receiver.endswith("log")
                is_outage = method in ("begins", "ends") and receiver.endswith(("outage", "rivalry"))
                if (is_log or is_outage) and not any(keyword.arg == "extra" for keyword in node.keywords):
                    yield node, rest[0] if method == "log" else first


def text_of(message: ast.expr, module: Module) -> str | None:
    """Return a message with `%s` where a value stands; None if it is known only at run time."""
    match message:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=pieces):
            return "".join(str(piece.value) if isinstance(piece, ast.Constant) else "%s" for piece in pieces)
        case ast.BoolOp(values=[*_, last]):
            return text_of(last, module)
        case ast.Name(id=name):
            for node in module.nodes:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                    return None if isinstance(node.value, ast.Name) else text_of(node.value, module)
    return None


def log_lines_are_sentences(sources: Sources) -> list[str]:
    """A log line begins with a capital letter or a value, and ends with a full stop or a value."""
    return [
        module.at(call, f"{text!r}: a sentence with a capital letter and a full stop")
        for module in sources.values()
        for call, message in log_calls(module)
        if (text := text_of(message, module)) is not None
        if not re.match(r"[A-Z%]", text) or not re.search(r"(\.|%[sdgr]|%\.\df)$", text.removesuffix("\n%s"))
    ]


def log_lines_name_a_cause(sources: Sources) -> list[str]:
    """A caught error is logged by `cause_of`: many errors have no text of their own."""
    problems: list[str] = []
    for module in sources.values():
        for handler in (node for node in module.nodes if isinstance(node, ast.ExceptHandler) and node.name):
            inside = set(ast.walk(handler))
            problems += [
                module.at(call, f"{handler.name}: log cause_of({handler.name}), which is never empty")
                for call, _ in log_calls(module)
                if call in inside
                for argument in call.args
                for value in logged_values(argument)
                if isinstance(value, ast.Name) and value.id == handler.name
            ]
    return problems


def logged_values(argument: ast.expr) -> Iterator[ast.expr]:
    """Yield the expressions whose text an argument of a log call shows."""
    match argument:
        case ast.JoinedStr(values=pieces):
            yield from (piece.value for piece in pieces if isinstance(piece, ast.FormattedValue))
        case ast.BoolOp(values=values) | ast.Starred(value=ast.Tuple(elts=values)):
            for value in values:
                yield from logged_values(value)
        case _:
            yield argument


Rule = Callable[[Sources], list[str]]
RULES: dict[Rule, tuple[str, ...]] = {
    docstrings_stand_alone: ROOMS,
    statements_assign_one_thing: ROOMS,
    variables_are_nouns: ROOMS,
    fields_are_nouns: ROOMS,
    log_lines_are_sentences: PACKAGES,
    log_lines_name_a_cause: PACKAGES,
}


@pytest.fixture(scope="module")
def problems() -> dict[Rule, list[str]]:
    """The problems that each rule finds. A room is parsed once for all rules, and then dropped."""
    lines: dict[Rule, list[str]] = {rule: [] for rule in RULES}
    for room in ROOMS:
        sources = read_sources(ROOT, (room,))
        for rule, rooms in RULES.items():
            if room in rooms:
                lines[rule] += rule(sources)
    return lines


@pytest.mark.parametrize("rule", RULES, ids=[rule.__name__ for rule in RULES])
def test_sources_keep_to_the_words(rule: Rule, problems: dict[Rule, list[str]]) -> None:
    assert not problems[rule], "\n" + "\n".join(problems[rule])


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
        (fields_are_nouns, "class A:\n    seen: int = 1"),
        (fields_are_nouns, "class A:\n    def f(self):\n        self._told = 1"),
        (log_lines_are_sentences, 'log.info("stopped.")'),
        (log_lines_are_sentences, 'self._log.log(level, "Stopped after %d s")'),
        (log_lines_are_sentences, 'LINE = "Stopped"\n_log.exception(LINE)'),
        (log_lines_are_sentences, 'self._outage.begins(outage.cause or f"Lost ({cause}): retrying")'),
        (log_lines_name_a_cause, 'try:\n    f()\nexcept OSError as error:\n    log.warning("Lost (%s).", error)'),
        (log_lines_name_a_cause, 'try:\n    f()\nexcept OSError as e:\n    outage.begins(f"Lost ({e}).")'),
    ],
)
def test_breach_is_reported(rule: Rule, text: str) -> None:
    assert rule({"bench.a": Module("bench.a", "bench/a.py", text, False)}) != []


def test_verbs_nouns_and_unpacked_results_are_allowed() -> None:
    text = '"""Sends events."""\ndef f(x):\n    """Return it."""\n    a, b = x\n    """A pair."""\n    return lambda: a'
    sources = {"bench.a": Module("bench.a", "bench/a.py", text, False)}
    assert [problem for rule in RULES for problem in rule(sources)] == []
