"""Checks the browser's modules of control, as `test_architecture.py` checks the Python sources: what they may import.

Each rule is a function from the modules' texts to a list of `path: problem`, and is also run on modules that break it.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from posixpath import dirname, join, normpath

import pytest

from control.api.console.pages import PAGES

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ("control/api/console/assets", "control/api/session_pages/assets")
START = "main.mjs"
"""The only module outside of `pages/` that may load a page."""
STATIC = re.compile(r'^(?:import|export)\b\s*(?:([^"\';]*?)\s*\bfrom\s*)?"([^"]+)";', re.MULTILINE)
DYNAMIC = re.compile(r"\bimport\(\s*([^)]*?)\s*\)")
EXPORTED = re.compile(r"\bexport\s+(?:async\s+)?(?:function\*?|class|const|let)\s+([\w$]+)")
EXPORT_LIST = re.compile(r"\bexport\s*{([^}]*)}(?!\s*from)")
TERMINAL = "xterm.mjs"
"""Another project's module. It is on no page of the console."""
SCHEME = re.compile(r"\b(?:matchMedia|prefers-color-scheme)\b")
PAGE_TEMPLATE = "`./pages/${page.name}.mjs`"

Texts = dict[str, str]
"""The text of each module, by its path below `assets`."""
Rule = Callable[[Texts], list[str]]


def names_in(braces: str, side: int) -> list[str]:
    """The names of `{a as b, c}`: what is taken (`side` 0), or what it is called (-1)."""
    return [one.split(" as ")[side].strip() for one in braces.strip("{} \n").split(",") if one.strip()]


def exports(text: str) -> set[str]:
    return {*EXPORTED.findall(text), *(name for one in EXPORT_LIST.findall(text) for name in names_in(one, -1))}


def imports(path: str, text: str) -> Iterator[tuple[str, list[str]]]:
    """The path and the names of each import, those at run time too."""
    for names, source in STATIC.findall(text):
        yield normpath(join(dirname(path), source)), names_in(names, 0) if names.startswith("{") else []
    for source in DYNAMIC.findall(text):
        pages = [f'"./pages/{page}.mjs"' for page in PAGES] if source == PAGE_TEMPLATE else [source]
        for page in pages:
            yield normpath(join(dirname(path), page.strip('"'))), []


def imported_modules_exist(texts: Texts) -> list[str]:
    return [
        f"{path}: imports {source}, which does not exist"
        for path, text in texts.items()
        for source, _ in imports(path, text)
        if source not in texts
    ]


def imported_names_are_exported(texts: Texts) -> list[str]:
    return [
        f"{path}: {source} exports no {name}"
        for path, text in texts.items()
        for source, names in imports(path, text)
        for name in names
        if name not in exports(texts.get(source, ""))
    ]


def imports_have_no_cycle(texts: Texts) -> list[str]:
    graph = {path: [source for source, _ in imports(path, text)] for path, text in texts.items()}
    finished: set[str] = set()

    def cycle_from(path: str, trail: tuple[str, ...]) -> tuple[str, ...]:
        if path in trail:
            return (*trail[trail.index(path) :], path)
        if path not in finished:
            for source in graph.get(path, ()):
                if cycle := cycle_from(source, (*trail, path)):
                    return cycle
        finished.add(path)
        return ()

    cycles = (cycle_from(path, ()) for path in graph)
    return [f"{cycle[0]}: import cycle: {' → '.join(cycle)}" for cycle in cycles if cycle][:1]


def only_the_start_loads_pages(texts: Texts) -> list[str]:
    return [
        f"{path}: shared by pages, and imports {source}"
        for path, text in texts.items()
        if not path.startswith("pages/") and path != START
        for source, _ in imports(path, text)
        if source.startswith("pages/")
    ]


def only_the_style_sheet_asks_for_the_scheme(texts: Texts) -> list[str]:
    """Keep pages alike whether they are loaded in a scheme or change to it, which `test_looks.py` relies on."""
    ours = ((path, text) for path, text in texts.items() if path != TERMINAL)
    return [f"{path}: asks for {one}" for path, text in ours for one in SCHEME.findall(text)]


RULES: tuple[Rule, ...] = (
    imported_modules_exist,
    imported_names_are_exported,
    imports_have_no_cycle,
    only_the_start_loads_pages,
    only_the_style_sheet_asks_for_the_scheme,
)


def read_modules(folder: str) -> Texts:
    root = ROOT / folder
    return {path.relative_to(root).as_posix(): path.read_text() for path in sorted(root.rglob("*.mjs"))}


@pytest.mark.parametrize("folder", ASSETS)
@pytest.mark.parametrize("rule", RULES)
def test_browser_modules_obey(rule: Rule, folder: str) -> None:
    texts = read_modules(folder)
    assert any(list(imports(path, text)) for path, text in texts.items())
    problems = rule(texts)
    assert not problems, "\n" + "\n".join(problems)


BREACHES: tuple[tuple[Rule, Texts, str], ...] = (
    (imported_modules_exist, {"a.mjs": 'import { h } from "./dom.mjs";'}, "a.mjs: imports dom.mjs"),
    (imported_modules_exist, {"a.mjs": 'export { h } from "./dom.mjs";'}, "dom.mjs"),
    (imported_modules_exist, {"a.mjs": 'import "./dom.mjs";'}, "dom.mjs"),
    (imported_modules_exist, {"pages/a.mjs": 'f(await import("../b.mjs"));'}, "pages/a.mjs: imports b.mjs"),
    (imported_modules_exist, {"a.mjs": f"await import({PAGE_TEMPLATE});"}, "pages/overview.mjs"),
    (imported_modules_exist, {"a.mjs": "await import(name);"}, "imports name"),
    (
        imported_names_are_exported,
        {"a.mjs": 'import {\n  h,\n  gone as here,\n} from "./b.mjs";', "b.mjs": "export const h = 1;\nlet gone;"},
        "a.mjs: b.mjs exports no gone",
    ),
    (
        imports_have_no_cycle,
        {"a.mjs": 'import { b } from "./pages/b.mjs";', "pages/b.mjs": 'import { a } from "../a.mjs";'},
        "a.mjs → pages/b.mjs → a.mjs",
    ),
    (
        imports_have_no_cycle,
        {"a.mjs": 'export { b } from "./b.mjs";', "b.mjs": 'const a = await import("./a.mjs");'},
        "a.mjs → b.mjs → a.mjs",
    ),
    (
        only_the_start_loads_pages,
        {"form.mjs": 'import { b } from "./pages/b.mjs";', "pages/b.mjs": "export const b = 1;"},
        "form.mjs: shared by pages, and imports pages/b.mjs",
    ),
    (only_the_style_sheet_asks_for_the_scheme, {"a.mjs": 'matchMedia("(width > 9em)");'}, "a.mjs: asks for matchMedia"),
)


@pytest.mark.parametrize(("rule", "texts", "expected"), BREACHES)
def test_violation_is_reported(rule: Rule, texts: Texts, expected: str) -> None:
    problems = rule(texts)
    assert any(expected in problem for problem in problems), problems


def test_every_rule_has_an_example_violation() -> None:
    assert {rule for rule, _, _ in BREACHES} == set(RULES)


def test_exports_of_every_form_are_known() -> None:
    declared = "export async function a() {}\nexport class B {}\nexport const c = 1;\nexport function* d() {}"
    assert exports(f"{declared}\nexport{{e as f,g}};") == {"a", "B", "c", "d", "f", "g"}
