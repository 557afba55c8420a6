"""The calls of a journal directory, by `python -m proxy journal dump`: commands do not know the journals' format."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commands.errors import JournalError


def journal_lines(directory: Path) -> Iterator[dict[str, Any]]:
    """Raises JournalError if there is no journal, or this user may not read it."""
    words = [sys.executable, "-P", "-m", "proxy", "journal", "dump", "--journal-dir", str(directory)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as dump:
        assert dump.stdout is not None and dump.stderr is not None  # noqa: PT018 (piped above)
        for line in dump.stdout:
            yield json.loads(line)
        message = dump.stderr.read().decode(errors="replace").strip().removeprefix("Error: ")
    if dump.returncode:
        raise JournalError(message.splitlines()[-1] if message else f"{directory}: the journals cannot be read")
