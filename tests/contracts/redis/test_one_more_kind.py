"""A kind of limit that is added to the table alone works everywhere."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.redis_server import REDIS_BINARIES, private_redis

ROOT = Path(__file__).parents[3]
ROWS = {
    "\n    __hash__ = str.__hash__  # an": (
        '    CACHED_INPUT_TOKEN = "CACHED_INPUT_TOKEN", "cached input tokens", TokenParts(cached_input=True)\n'
    ),
    "\n    __hash__ = str.__hash__\n": ('    HOUR = "HOUR", Rolling(window_ms=3_600_000, granule_ms=60_000)\n'),
    ')\n"""The kinds of limits, in the order': "    (LimitType.CACHED_INPUT_TOKEN, Unit.HOUR),\n",
}
"""The rows, by what they stand before."""


@pytest.mark.parametrize("binary", REDIS_BINARIES[:1])
def test_one_more_kind_in_the_table_works_everywhere(binary: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "policy", tmp_path / "policy", ignore=shutil.ignore_patterns("__pycache__"))
    table = tmp_path / "policy/limits/kinds.py"
    text = table.read_text()
    for place, row in ROWS.items():
        assert text.count(place) == 1
        text = text.replace(place, row + place)
    table.write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    with private_redis(binary=binary) as server:
        command = [sys.executable, "-m", "tests.contracts.redis.one_more_kind"]
        arguments = [server.url, f"sqlite+aiosqlite:///{tmp_path}/control.db"]
        result = subprocess.run(
            [*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr
