"""The client packages as `make release` builds them, installed below a directory, and programs that use them."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from deploy.release.clients import NODE_MODULES, build_clients, openapi_document
from tests.clients.catalogue import node

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(__file__).parent
VERSION = "1.2.3"
EPOCH = 1_790_000_000
_DEPENDENCIES = ("openapi-fetch", "openapi-typescript-helpers", "@types/node", "undici-types")
"""The packages that `npm install` of ours brings, and the types of Node.js, which the programs use."""


class Packages:
    """The packages, built and installed. `python` is a directory for `PYTHONPATH`; programs in `node` find npm's."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / "files"
        self.python = folder / "python"
        self.node = folder / "node"
        self.document = folder / "openapi.json"
        self.document.write_text(openapi_document(ROOT))
        build_clients(ROOT, self.files, VERSION, EPOCH)
        with zipfile.ZipFile(self.files / f"tollgate_client-{VERSION}-py3-none-any.whl") as wheel:
            wheel.extractall(self.python)
        modules = self.node / "node_modules"
        modules.mkdir(parents=True)
        package = self.files / f"tollgate-client-{VERSION}.tgz"
        subprocess.run(["tar", "-xf", str(package), "-C", str(modules)], check=True)
        (modules / "package").rename(modules / "tollgate-client")
        for name in _DEPENDENCIES:
            (modules / name).parent.mkdir(exist_ok=True)
            (modules / name).symlink_to(NODE_MODULES / name)
        (self.node / "package.json").write_text('{"type": "module"}\n')

    def first_program(self, language: str, ending: str, slug: str) -> Path:
        """Write the first program of a README into a file of its own, for a slug that the workspace may use."""
        readme = (ROOT / f"clients/{language}/README.md").read_text()
        section = readme.partition("\n## A first program\n")[2].partition("\n## ")[0]
        (text,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
        path = self.node / f"first_program.{ending}"
        assert "acme/assistant" in text
        path.write_text(text.replace("acme/assistant", slug))
        return path

    def run_python(self, program: Path, *arguments: str, **environment: str) -> str:
        words = [sys.executable, "-W", "error", str(program), *arguments]
        return _output(words, PYTHONPATH=str(self.python), **environment)

    def check_python(self, *paths: Path) -> str:
        """Check strictly; return the problems, if any."""
        words = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--no-incremental"]
        environment = os.environ | {"MYPYPATH": str(self.python)}
        return _checked([*words, *map(str, paths)], environment, self.python)

    def compile_typescript(self, *programs: Path) -> str:
        """Check strictly, libraries included, and compile beside the packages; return the problems, if any."""
        for program in programs:
            if program.parent != self.node:
                shutil.copyfile(program, self.node / program.name)
        words = [str(node()), str(NODE_MODULES / "typescript/bin/tsc"), "--strict", "--module", "NodeNext"]
        words += ["--target", "ES2022", "--types", "node", *(program.name for program in programs)]
        return _checked(words, os.environ | {}, self.node)

    def generate_types(self) -> None:
        """Write `schema.ts` as openapi-typescript does by default."""
        script = NODE_MODULES / "openapi-typescript/bin/cli.js"
        _output([str(node()), str(script), str(self.document), "-o", str(self.node / "schema.ts")])

    def run_node(self, program: str, *arguments: str, **environment: str) -> str:
        return _output([str(node()), str(self.node / f"{program}.js"), *arguments], **environment)


def _output(words: list[str], **environment: str) -> str:
    result = subprocess.run(words, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def _checked(words: list[str], environment: dict[str, str], directory: Path) -> str:
    result = subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else result.stdout + result.stderr
