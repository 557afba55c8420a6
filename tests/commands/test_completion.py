"""The completion scripts: bash completes with it; the others' are printed."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from commands.connection import Connection
from control.operator.cli import tollgate
from tests.commands.fake_api import FakeApi, page
from tests.ports import own_port

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


OWN = {"id": "grp_1"}
GROUPS = page(*({"metadata": {"external_entity_id": name}} for name in ("acme", "acme-blue", "acm\ne", "other")))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("tollgate groups get acm", ["acme", "acme-blue"]),
        ("tollgate groups tree oth", ["other"]),
        ("tollgate keys create --group acme-", ["acme-blue"]),
        ("tollgate events list --entity oth", ["other"]),
        ("tollgate endpoints delete a", ["acme/chat"]),
        ("tollgate prices delete a", ["acme/chat"]),
        ("tollgate keys delete tg_", ["tg_ws"]),
        ("tollgate keys delete --group acme tg_", ["tg_grp"]),
        ("tollgate keys rotate --group acme tg_", ["tg_grp"]),
        ("tollgate keys disable tg_", ["tg_any"]),
        ("tollgate keys set tg_grp --slug a", ["acme/chat"]),
        ("tollgate models deployments get m d", ["dep"]),
        ("tollgate models environments get m p", ["prod"]),
        ("tollgate training jobs get t", ["tj_1"]),
        ("tollgate training projects get p", ["p1"]),
    ],
)
def test_names_of_the_workspace_are_completed(words: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi(
        {
            "GET /v1/gateway/groups": lambda _body, query: page(OWN) if "external_entity_id" in query else GROUPS,
            "GET /v1/gateway/endpoints": page({"slug": "acme/chat"}),
            "GET /v1/api_keys": page({"prefix": "tg_ws"}),
            "GET /v1/gateway/groups/grp_1/api_keys": page({"prefix": "tg_grp"}),
            "GET /v1/gateway/api_keys": page({"prefix": "tg_any"}),
            "GET /v1/models": page({"id": "mdl_1", "name": "m"}),
            "GET /v1/models/mdl_1/deployments": page({"name": "dep"}),
            "GET /v1/models/mdl_1/environments": page({"name": "prod"}),
            "POST /v1/training_jobs/search": {"training_jobs": [{"id": "tj_1"}]},
            "GET /v1/training_projects": {"training_projects": [{"id": "tp_1", "name": "p1"}]},
        }
    )
    monkeypatch.setattr(Connection, "run", lambda _self, work: asyncio.run(work(api)))
    assert completions(words, TOLLGATE_API_KEY="tg_x") == names


def test_names_that_nobody_can_tell_complete_nothing(tmp_path: Path) -> None:
    words = "tollgate groups get acm"
    assert completions(words, TOLLGATE_DATA=str(tmp_path / "none"), TOLLGATE_API_KEY="") == []
    assert completions(words, TOLLGATE_URL=f"http://127.0.0.1:{own_port()}", TOLLGATE_API_KEY="tg_x") == []


def completions(words: str, **environment: str) -> list[str]:
    """The words that bash would offer for the last one."""
    environment |= {"_TOLLGATE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    result = CliRunner().invoke(tollgate, [], env=environment, prog_name="tollgate")
    assert result.stderr == ""
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]
