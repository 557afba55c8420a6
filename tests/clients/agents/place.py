"""Gives an agent a home and a working directory of its own, which each run finds new.

Uses the standard library only, as the harness does.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.clients.python.harness import PNG, Target

BUILT = Path(__file__).resolve().parents[3] / ".clients"
PROGRAMS = BUILT / "agents" / "node_modules" / ".bin"
WITHIN_S = 60
BEFORE = "Hello, world.\n"
AFTER = "Goodbye, world.\n"
OTHER_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC"
PDF = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]>>endobj
trailer<</Root 1 0 R>>
%%EOF
"""
MEDIA_TYPES = {".png": "image/png", ".pdf": "application/pdf"}
STATUS = re.compile(r"(?:API Error: |unexpected status )(\d{3})")
Json = dict[str, Any]


class Place:
    """One for each slug, as clients run beside each other."""

    def __init__(self, target: Target) -> None:
        root = BUILT / "agents" / "places" / target.model.rpartition("/")[2]
        shutil.rmtree(root, ignore_errors=True)
        self.home = root / "home"
        self.work = root / "work"
        self.file = self.work / "greeting.txt"
        self.missing = self.work / "missing.txt"
        self.picture = self.work / "picture.png"
        self.home.mkdir(parents=True)
        self.work.mkdir()
        self.file.write_text(BEFORE)
        self.document = self.work / "document.pdf"
        self.document.write_bytes(PDF)
        self.picture.write_bytes(base64.b64decode(PNG))
        self.other_picture = self.work / "other.png"
        self.other_picture.write_bytes(base64.b64decode(OTHER_PNG))

    def run(self, *words: object, **settings: str) -> list[Json]:
        """Run an agent; return the JSON lines that it printed. `AgentError` unless it exits with status 0.

        `HTTP_PROXY` and `HTTPS_PROXY` are as in this process: an agent that leaves the machine fails.
        """
        passed = {name: os.environ[name] for name in ("PATH", "LANG", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")}
        result = subprocess.run(
            [str(word) for word in words],
            cwd=self.work,
            env=passed | {"HOME": str(self.home)} | settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
        if result.returncode:
            raise AgentError(error_text(lines) or result.stderr[-2000:])
        return lines


class AgentError(Exception):
    """The agent gave up. `status_code`: the HTTP status that it names."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        match = STATUS.search(text)
        self.status_code = int(match[1]) if match else None


def error_text(lines: list[Json]) -> str:
    """Return what the agent says went wrong, in its last words."""
    texts = [line.get("result") or line.get("message") or line.get("error") for line in lines]
    return str(next((text for text in reversed(texts) if text), ""))


def named(file: Path) -> str:
    """Return the scripted vendor's name for a picture or a document that it was shown."""
    return f"{MEDIA_TYPES[file.suffix]} {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"


def script(turns: list[Json]) -> str:
    """A task that makes the scripted vendor follow the script."""
    return f"[[scenario:scripted]] {json.dumps(turns)}"


def turn(says: str, *calls: tuple[str, Json], expects: tuple[str, ...] = ()) -> Json:
    return {"expects": expects, "says": says, "calls": calls}
