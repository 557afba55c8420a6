"""Contexts: where they are kept, which one is in use, and what goes before it."""

import json
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from commands.connection import Access, Connection, over_api
from commands.edges.context_file import Contexts, path_of_contexts, read_contexts
from commands.errors import NoAccessError
from control.operator.cli import tollgate

KEY = "tg_abcdefgh.secret"


class NoLocalAccess:
    """A machine without a `tollgate up`, but for one in the directory `here`."""

    def __call__(self, data: Path, workspace: str | None) -> Access:
        if str(data) != "here":
            raise NoAccessError(f"no data directory {data}")
        return Access("http://here:1", f"local key of {workspace}")


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and no setting of ours."""
    for name in ("TOLLGATE_API_KEY", "TOLLGATE_URL", "TOLLGATE_DATA", "TOLLGATE_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "tollgate/contexts.json"


def run(*words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(tollgate, ("context", *words), input=stdin)


def add(name: str, url: str) -> None:
    assert run("add", name, "--url", url, stdin=f"{KEY}\n").exit_code == 0


def access(*words: str) -> Access:
    """The access of a command that is called with these words. Raises ClickException."""

    @click.command()
    @over_api
    def command(connection: Connection) -> Access:
        return connection.access

    return command.main(words, standalone_mode=False, obj=NoLocalAccess())  # type: ignore[no-any-return]


def test_first_context_is_in_use_and_another_by_use(settings: Path) -> None:
    add("stage", "http://stage:8081")
    add("live", "https://live")
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600
    assert access() == Access("http://stage:8081", KEY)
    assert run("use", "live").exit_code == 0
    assert access() == Access("https://live", KEY)
    listed = run("list")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["NAME", "live", "stage"]
    assert json.loads(run("list", "--json").stdout)["items"][0] == {
        "name": "live",
        "url": "https://live",
        "in_use": True,
    }
    assert KEY not in listed.output + run("list", "--json").output


def test_environment_flags_and_directories_go_before_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    add("live", "https://live")
    assert access("--data", "here").url == "http://here:1"
    monkeypatch.setenv("TOLLGATE_DATA", "here")
    assert access().url == "http://here:1"
    monkeypatch.delenv("TOLLGATE_DATA")
    monkeypatch.setenv("TOLLGATE_API_KEY", "tg_env.secret")
    assert access() == Access("http://127.0.0.1:8081", "tg_env.secret")
    monkeypatch.delenv("TOLLGATE_API_KEY")
    with pytest.raises(click.ClickException, match="no data directory"):
        access("--url", "http://other:1")  # the context's key is for its own URL


def test_key_of_a_context_is_of_one_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    add("live", "https://live")
    monkeypatch.setenv("TOLLGATE_WORKSPACE", "acme")
    with pytest.raises(click.ClickException, match="a key is of one workspace: use --data"):
        access()
    assert access("--data", "here").api_key == "local key of acme"


def test_context_that_is_removed_is_in_use_no_more() -> None:
    add("live", "https://live")
    assert "--yes is needed" in run("remove", "live").stderr
    assert run("remove", "live", "--yes").exit_code == 0
    with pytest.raises(click.ClickException, match="no data directory"):
        access()
    assert "there are none" in run("use", "live").stderr


def test_none_is_in_use_if_that_is_wanted() -> None:
    add("live", "https://live")
    assert run("use", "--none").exit_code == 0
    add("stage", "http://stage")
    assert read_contexts(path_of_contexts()).in_use is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("add", "live", "--url", "https://live"), "a context 'live' already"),
        (("add", "other", "--url", "live"), "--url"),
        (("use", "other"), "there are live"),
        (("use",), "give the NAME"),
        (("use", "live", "--none"), "give the NAME"),
        (("remove", "other", "--yes"), "there are live"),
    ],
)
def test_wrong_use_is_told_and_changes_nothing(words: tuple[str, ...], message: str) -> None:
    add("live", "https://live")
    before = read_contexts(path_of_contexts())
    refused = run(*words, stdin=KEY)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert read_contexts(path_of_contexts()) == before


@pytest.mark.parametrize("content", ["", "{", "[]", '{"contexts": {"a": {}}, "in_use": null}', '{"contexts": []}'])
def test_damaged_file_is_told_with_its_remedy(content: str, settings: Path) -> None:
    settings.parent.mkdir()
    settings.write_text(content)
    with pytest.raises(click.ClickException, match="remove it, and add them again"):
        access()
    assert run("list").exit_code == 1


def test_no_file_is_no_context(settings: Path) -> None:
    assert read_contexts(settings) == Contexts()


def test_file_that_others_could_read_is_closed(settings: Path) -> None:
    add("live", "https://live")
    settings.chmod(0o644)
    access()
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600
