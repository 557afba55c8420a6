"""The `tollgate` command without a running product: its output, its exit statuses and its error messages."""

import base64
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from control.operator.cli import tollgate
from policy.credentials import prefix_of
from policy.sealing import key_ids


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "TOLLGATE_MODEL_API_TIERS",
        "TOLLGATE_DATABASE_URL",
        "TOLLGATE_SECRET_KEY",
        "TOLLGATE_SECRET_KEY_FILE",
        "TOLLGATE_REDIS_URL",
        "TOLLGATE_DATA",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(tollgate, arguments)


def run_and_parse(*arguments: str) -> list[dict[str, object]]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_database_that_cannot_be_used_is_told_with_its_cause(data: Path) -> None:
    data.mkdir(mode=0o700)
    (data / "control.db").write_bytes(b"no database" * 1000)
    (data / "secret.key").touch()
    result = run("workspace", "list", "--data", str(data))
    assert (result.exit_code, "file is not a database" in result.output) == (1, True)


def test_a_workspace_is_created_changed_and_listed(data: Path) -> None:
    where = ("--data", str(data))
    (workspace,) = run_and_parse("workspace", "create", "acme", "--prefix", "acme", "acme-labs", *where)
    assert list(workspace) == ["workspace_id", "name", "prefixes", "api_key"]
    assert (workspace["name"], workspace["prefixes"]) == ("acme", ["acme", "acme-labs"])
    assert prefix_of(str(workspace["api_key"]))
    run_and_parse("workspace", "create", "later", "--prefix", "later", "--tier", "pro", "--not-onboarded", *where)
    run_and_parse("workspace", "set", "acme", "--tier", "verified", "--not-onboarded", "--billing", "suspended", *where)
    acme, later = run_and_parse("workspace", "list", *where)
    assert (acme["tier"], acme["onboarded"], acme["billing"]) == ("verified", False, "suspended")
    assert (later["tier"], later["onboarded"], later["billing"]) == ("pro", False, "active")


def test_a_workspaces_longest_asynchronous_body_is_set_and_returned_to_the_default(data: Path) -> None:
    where = ("--data", str(data))
    run_and_parse("workspace", "create", "acme", "--prefix", "acme", *where)
    for text, size in (("1", 1), ("100000000", 100_000_000), ("default", None)):
        (changed,) = run_and_parse("workspace", "set", "acme", "--async-max-body-bytes", text, *where)
        assert changed["async_max_body_bytes"] == size
        assert run_and_parse("workspace", "list", *where) == [changed]


@pytest.mark.parametrize("tier", ["gold", "custom", "custom=", "custom=0/5", "custom=5", "custom=5/0", "pro=5/5", ""])
def test_an_unknown_tier_is_refused_and_nothing_is_created(data: Path, tier: str) -> None:
    where = ("--data", str(data))
    refused = run("workspace", "create", "acme", "--prefix", "acme", "--tier", tier, *where)
    assert refused.exit_code == 1
    assert f"no tier is called {tier!r}; known are basic, pro, verified, and custom=REQUESTS/TOKENS" in refused.output
    assert not data.exists()
    run_and_parse("workspace", "create", "acme", "--prefix", "acme", *where)
    assert run("workspace", "set", "acme", "--tier", tier, *where).exit_code == 1
    assert [workspace["tier"] for workspace in run_and_parse("workspace", "list", *where)] == ["basic"]


def test_tiers_of_the_setting_and_custom_figures_are_accepted(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = ("--data", str(data))
    run_and_parse("workspace", "create", "acme", "--prefix", "acme", "--tier", "custom=600/3000000", *where)
    monkeypatch.setenv("TOLLGATE_MODEL_API_TIERS", "gold=1000/5000000")
    assert run_and_parse("workspace", "set", "acme", "--tier", "gold", *where)[0]["tier"] == "gold"
    assert "known are basic, gold, pro, verified" in run("workspace", "set", "acme", "--tier", "silver", *where).output
    monkeypatch.setenv("TOLLGATE_MODEL_API_TIERS", "gold")
    refused = run("workspace", "set", "acme", "--tier", "pro", *where)
    assert (refused.exit_code, refused.output.startswith("Error: TOLLGATE_MODEL_API_TIERS: expected")) == (1, True)


def test_another_workspace_key_can_be_created(data: Path) -> None:
    where = ("--data", str(data))
    (workspace,) = run_and_parse("workspace", "create", "acme", "--prefix", "acme", *where)
    (key,) = run_and_parse("key", "create", "acme", *where)
    assert key["api_key"] != workspace["api_key"]
    assert key["type"] == "WORKSPACE_MANAGE_ALL"
    (other,) = run_and_parse("key", "create", "acme", "--type", "WORKSPACE_INVOKE", *where)
    assert other["type"] == "WORKSPACE_INVOKE"


def test_the_database_is_selected_by_flag_or_environment(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite+aiosqlite:///{data.parent}/other.db"
    run_and_parse("workspace", "create", "acme", "--prefix", "acme", "--database-url", url)
    monkeypatch.setenv("TOLLGATE_DATABASE_URL", url)
    assert [entry["name"] for entry in run_and_parse("workspace", "list")] == ["acme"]
    assert not data.exists()
    assert not Path(".tollgate").exists()


@pytest.mark.parametrize(
    "arguments",
    [("workspace", "list"), ("workspace", "set", "acme", "--tier", "pro"), ("key", "create", "acme")],
    ids=" ".join,
)
def test_a_mistyped_database_is_named_and_not_created(data: Path, arguments: tuple[str, ...]) -> None:
    typo = data.parent / "typo"
    for where in (("--data", str(typo)), ("--database-url", f"sqlite:///{typo}.db")):
        result = run(*arguments, *where)
        assert result.exit_code == 1
        assert "typo" in result.stderr
        assert "tollgate workspace create" in result.stderr, "the remedy"
    assert list(data.parent.iterdir()) == []


def test_a_database_of_a_newer_version_is_reported_without_a_traceback(data: Path) -> None:
    where = ("--data", str(data))
    run_and_parse("workspace", "create", "acme", "--prefix", "acme", *where)
    with closing(sqlite3.connect(data / "control.db")) as conn, conn:
        conn.execute("UPDATE alembic_version SET version_num = '9999'")
    result = run("workspace", "list", *where)
    assert result.exit_code == 1
    assert "written by a newer Tollgate" in result.stderr
    assert "9999" in result.stderr
    assert "Traceback" not in result.output


def test_reencrypt_prints_the_number_of_secrets(data: Path) -> None:
    run_and_parse("workspace", "create", "acme", "--prefix", "acme", "--data", str(data))
    assert run_and_parse("secrets", "reencrypt", "--data", str(data)) == [{"reencrypted": 0}]


def test_reencrypt_refuses_another_key_than_that_of_control(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = ("--data", str(data))
    run_and_parse("workspace", "create", "acme", "--prefix", "acme", *where)
    controls = base64.b64encode(b"c" * 32).decode()
    with closing(sqlite3.connect(data / "control.db")) as conn, conn:
        conn.execute("INSERT INTO sealing_keys VALUES (1, ?)", key_ids([b"c" * 32]))
    result = run("secrets", "reencrypt", *where)
    assert result.exit_code == 1
    assert "Nothing was changed" in result.stderr
    assert len(result.stderr.splitlines()) <= 3
    (data / "keys").write_text(controls)
    for name, value in (("TOLLGATE_SECRET_KEY_FILE", str(data / "keys")), ("TOLLGATE_SECRET_KEY", controls)):
        with monkeypatch.context() as shell:
            shell.setenv(name, value)
            assert run_and_parse("secrets", "reencrypt", *where) == [{"reencrypted": 0}]


def test_reencrypt_makes_no_key(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = ("--data", str(data))
    run_and_parse("workspace", "create", "acme", "--prefix", "acme", *where)
    url = f"sqlite+aiosqlite:///{data / 'control.db'}"
    result = run("secrets", "reencrypt", "--database-url", url, "--data", str(data.parent / "empty"))
    assert result.exit_code == 1
    assert "set it to that of control" in result.stderr
    assert not (data.parent / "empty").exists()


def test_machines_of_the_proxy_are_listed_and_released(data: Path) -> None:
    where = ("--data", str(data))
    run_and_parse("workspace", "create", "acme", "--prefix", "acme", *where)
    assert run_and_parse("spend", "machines", *where) == []
    with closing(sqlite3.connect(data / "control.db")) as conn, conn:
        conn.execute("INSERT INTO spend_machines VALUES ('host:/one', '[\"a\"]', 1000, '{}')")
        conn.execute("INSERT INTO spend_machines VALUES ('host:/two', '[\"b\"]', 4102444800000, '{}')")
        conn.execute("INSERT INTO spend_rebuilds VALUES ('grp_1', 'epoch 1')")
    one, two = run_and_parse("spend", "machines", *where)
    rest = {"incarnations": 1, "waiting_trees": ["grp_1"]}
    assert one == {"machine": "host:/one", "reported_at": "1970-01-01T00:00:01.000Z", **rest}
    assert run_and_parse("spend", "release", "--machine", "host:/one", *where) == [one | {"waiting_trees": []}]
    refused = run("spend", "release", "--machine", "host:/two", *where)
    assert (refused.exit_code, "--force" in refused.stderr) == (1, True)
    run_and_parse("spend", "release", "--machine", "host:/two", "--force", *where)
    assert two["machine"] == "host:/two"
    assert run_and_parse("spend", "machines", *where) == []


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("workspace", "create", "acme", "--prefix", "new"), 1, "has that name already"),
        (("workspace", "create", "new", "--prefix", "acme"), 1, "has that prefix already"),
        (("workspace", "create", "new", "--prefix", "a b"), 1, "at least one prefix"),
        (("workspace", "create", "new"), 2, "--prefix"),
        (("workspace", "create", "", "--prefix", "new"), 1, "1 to 255 printable characters"),
        (("workspace", "set", "nobody", "--tier", "pro"), 1, "no workspace is called 'nobody'"),
        (("workspace", "set", "acme"), 2, "nothing to change"),
        (("workspace", "set", "acme", "--billing", "maybe"), 2, "'maybe' is not one of"),
        *(
            (("workspace", "set", "acme", "--async-max-body-bytes", text), 2, "from 1 to 100000000 nor 'default'")
            for text in ("0", "-1", "100000001", "1.5", "64k", "", "٣")
        ),
        (("key", "create", "nobody"), 1, "no workspace is called 'nobody'"),
        (("spend", "release", "--machine", "nobody"), 1, "No machine 'nobody' is known; `tollgate spend machines`"),
        (("spend", "release"), 2, "--machine"),
        (("key", "create", "acme", "--type", "FEDERATED"), 2, "is not one of"),
        (("workspace", "list", "--database-url", "mysql://u:hunter2@h/d"), 1, "must be sqlite+aiosqlite:///PATH"),
        (
            ("workspace", "list", "--database-url", "postgresql+asyncpg://u:hunter2@127.0.0.1:1/d"),
            1,
            "cannot be reached",
        ),
        (("up", "--database-url", "mysql://u:hunter2@h/d"), 1, "must be sqlite+aiosqlite:///PATH"),
        (("up", "--workers", "0"), 2, "--workers"),
        (("up", "--proxy-port", "70000"), 2, "--proxy-port"),
        (("nonsense",), 2, "No such command"),
    ],
)
def test_an_operators_mistake_is_reported_without_a_traceback(
    data: Path, arguments: tuple[str, ...], status: int, says: str
) -> None:
    run_and_parse("workspace", "create", "acme", "--prefix", "acme", "--data", str(data))
    where = () if arguments[0] == "nonsense" else ("--data", str(data))
    result = run(*arguments, *where)
    assert result.exit_code == status, result.output
    assert says in result.stderr
    assert "Traceback" not in result.output
    assert "hunter2" not in result.output


def test_a_malformed_secret_key_is_reported_and_not_shown(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_and_parse("workspace", "create", "acme", "--prefix", "acme", "--data", str(data))
    monkeypatch.setenv("TOLLGATE_SECRET_KEY", "hunter2")
    result = run("secrets", "reencrypt", "--data", str(data))
    assert result.exit_code == 1
    assert "TOLLGATE_SECRET_KEY must be" in result.stderr
    assert "hunter2" not in result.output


def test_every_command_has_a_help_text() -> None:
    for command in (
        (),
        ("up",),
        ("workspace", "create"),
        ("workspace", "set"),
        ("key", "create"),
        ("secrets", "rotate-key"),
        ("backup",),
        ("restore",),
        ("snapshot", "show"),
    ):
        result = run(*command, "--help")
        assert result.exit_code == 0
        assert result.stdout.startswith("Usage:")
