"""The completion scripts: bash completes with it; the others' are printed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from control.operator.cli import tollgate

_COMPLETES = """
eval "$(tollgate completion bash)"
COMP_WORDS=(tollgate gro) COMP_CWORD=1
_tollgate_completion tollgate
echo "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_a_command() -> None:
    search = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    result = subprocess.run(
        ["bash", "-c", _COMPLETES], env={"PATH": search}, capture_output=True, text=True, timeout=60, check=True
    )
    assert (result.stdout, result.stderr) == ("groups\n", "")


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_script_asks_the_command_for_completions(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TOLLGATE_COMPLETE", "")  # restored afterwards
    result = CliRunner().invoke(tollgate, ["completion", shell])
    assert result.exit_code == 0
    assert f"_TOLLGATE_COMPLETE={shell}_complete" in result.stdout


def test_words_are_completed_without_a_shell() -> None:
    environment = {"_TOLLGATE_COMPLETE": "bash_complete", "COMP_WORDS": "tollgate gro", "COMP_CWORD": "1"}
    result = CliRunner().invoke(tollgate, [], env=environment, prog_name="tollgate")
    assert result.stdout == "plain,groups\n"
