"""Builds the client packages: an OpenAPI document, generated code, and the hand-written top that `clients/` holds.

The generators are installed: `.venv` has openapi-python-client, `.clients/tollgate-client` beside it what the lock file
of `clients/typescript/` pins. Nothing is fetched. See docs/decisions/0099-generated-code-is-built.md.
"""

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from deploy.release.distributions import BuildError, build_project, copy_plainly, pack_again

NODE_MODULES = Path(sys.prefix).parent / ".clients/tollgate-client/node_modules"
"""TypeScript, its generator, and what the TypeScript client needs to run: beside the environment that builds."""
_NAME = "tollgate-client"
_DOCUMENT = (
    "import json, sys; from control.api.protocol.openapi import describe; from control.app import OPERATIONS;"
    " json.dump(describe(OPERATIONS), sys.stdout)"
)
_SETTINGS = "project_name_override: tollgate-client\npackage_name_override: tollgate_client\npost_hooks: []\n"
"""Settings of openapi-python-client. What is generated is not formatted: that is another program, and slow."""


def build_clients(tree: Path, to: Path, version: str, epoch: int) -> None:
    """Write a wheel, an sdist and an npm package of `tree`'s clients into `to`. Raises `BuildError`."""
    with tempfile.TemporaryDirectory(prefix="tollgate-clients-") as folder:
        root = Path(folder)
        document = root / "openapi.json"
        document.write_text(openapi_document(tree))
        python = _project(tree, "python", root / "python")
        (python / "VERSION").write_text(f"{version}\n")
        generate_python(document, python)
        build_project(python, _files(python), to, epoch)
        typescript = _project(tree, "typescript", root / "typescript")
        _compile_typescript(document, typescript)
        _pack_typescript(typescript, to / f"{_NAME}-{version}.tgz", version, epoch)


def openapi_document(tree: Path) -> str:
    """The OpenAPI document of the product in `tree`, as JSON."""
    return _run([sys.executable, "-B", "-c", _DOCUMENT], tree)


def generate_python(document: Path, project: Path) -> None:
    """Generate the code of `tollgate_client/` in `project`. The modules that are there win over generated ones."""
    package = project / "tollgate_client"
    top = package.rename(project / "top")
    settings = project / "generator.yml"
    settings.write_text(_SETTINGS)
    words = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning"]
    words += ["--path", str(document), "--config", str(settings), "--output-path", str(package)]
    _run([*words, "--custom-template-path", str(project / "templates")], project)
    shutil.copytree(top, package, dirs_exist_ok=True)
    shutil.rmtree(top)
    shutil.rmtree(project / "templates")
    settings.unlink()


def require_toolchain(package_lock: Path) -> None:
    """Raise `BuildError` unless `NODE_MODULES` is what this lock file pins."""
    installed = NODE_MODULES.parent / package_lock.name
    if not installed.exists() or installed.read_bytes() != package_lock.read_bytes():
        raise BuildError(f"{NODE_MODULES} is not what clients/typescript/package-lock.json pins; run `make toolchain`")


def _project(tree: Path, name: str, to: Path) -> Path:
    """Copy a client's own files and the licence into `to`."""
    copy_plainly(tree / "clients" / name, _files(tree / "clients" / name), to, 0)
    shutil.copyfile(tree / "LICENSE", to / "LICENSE")
    return to


def _files(root: Path) -> list[Path]:
    ignored = {"__pycache__", "node_modules", "dist"}
    paths = (path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file())
    return [path for path in paths if not ignored & {*path.parts}]


def _compile_typescript(document: Path, project: Path) -> None:
    """Generate the types of the document, and compile everything into `dist/`."""
    require_toolchain(project / "package-lock.json")
    (project / "node_modules").symlink_to(NODE_MODULES)
    paths = creating_paths(json.loads(document.read_text()))
    (project / "src/creating.ts").write_text(
        "// The paths whose POST takes an `Idempotency-Key`.\n"
        f"export const CREATING: ReadonlySet<string> = new Set<string>({json.dumps(paths, indent=2)});\n"
    )
    _run(["node", "node_modules/openapi-typescript/bin/cli.js", str(document), "-o", "src/schema.ts"], project)
    _run(["node", "node_modules/typescript/bin/tsc", "--project", "."], project)


def creating_paths(document: dict[str, Any]) -> list[str]:
    """The paths whose POST takes an `Idempotency-Key`."""

    def takes_key(operation: dict[str, Any]) -> bool:
        return any(one.get("name") == "Idempotency-Key" for one in operation.get("parameters", ()))

    return [path for path, methods in document["paths"].items() if takes_key(methods.get("post", {}))]


def _pack_typescript(project: Path, to: Path, version: str, epoch: int) -> None:
    """Write what `npm pack` would, with one owner, mode and time."""
    description = json.loads((project / "package.json").read_text(encoding="utf-8"))
    del description["devDependencies"]
    name = description.pop("name")
    described = json.dumps({"name": name, "version": version} | description, indent=2) + "\n"
    (project / "package.json").write_text(described, encoding="utf-8")
    archive = project / "package.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        for path in ("package.json", "README.md", "LICENSE", "dist"):
            packed.add(project / path, f"package/{path}")
    pack_again(archive, to, epoch)


def _run(words: list[str], directory: Path) -> str:
    process = subprocess.run(words, cwd=directory, capture_output=True, check=False, encoding="utf-8")
    if process.returncode != 0:
        raise BuildError(f"{' '.join(words[:4])}: {process.stdout}{process.stderr}")
    return process.stdout
