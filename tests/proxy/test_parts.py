"""Each protocol of `proxy/parts.py` names the class that does the work, and that class has all of its methods."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOCOLS = [
    node
    for node in ast.parse((ROOT / "proxy/parts.py").read_text()).body
    if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)
]
SOURCES = [path for path in (ROOT / "proxy").rglob("*.py") if path.name != "parts.py"]


def names_of(node: ast.ClassDef) -> set[str]:
    """Methods, class variables, and what `__init__` assigns to `self`."""
    methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    stored = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)}
    return methods | stored


def classes(name: str) -> list[ast.ClassDef]:
    """The classes of the proxy with this name, as one search finds them."""
    texts = (path.read_text() for path in SOURCES)
    trees = (ast.parse(text) for text in texts if f"class {name}" in text)
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda node: node.name)
def test_protocol_names_the_one_class_that_has_its_methods(protocol: ast.ClassDef) -> None:
    match = re.search(r"`(\w+)`", ast.get_docstring(protocol) or "")
    assert match is not None
    implementation = classes(match[1])
    assert len(implementation) == 1
    assert names_of(protocol) <= names_of(implementation[0])
