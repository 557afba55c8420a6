"""Commands over the management API with an API in memory: what they ask, print and refuse."""

import asyncio
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from commands import connection
from commands.connection import Connection
from commands.edges.private_lines import PrivateLines
from commands.errors import AwayError, ManagementError
from control.operator.cli import tollgate
from tests.commands.fake_api import FakeApi, page
from tests.fakes.listed_events import listed_event

ENDPOINT = {
    "id": "ep_1",
    "slug": "acme/chat",
    "targets": [{"provider": "VENDOR_B", "secret_id": "sec_1", "target_model": "old"}],
    "updated_at": "2026-11-24T00:00:00.000Z",
}
MOST_KINDS_DELETED = 11
SECRETS = page({"id": "sec_1", "name": "openai"}, {"id": "sec_2", "name": "other"})


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """Answers in place of a management API."""
    fake = FakeApi({"GET /v1/secrets": SECRETS, "GET /v1/gateway/endpoints": page(ENDPOINT)})

    def run(self: Connection, work: Any) -> Any:
        try:
            return asyncio.run(work(fake))
        except ManagementError as error:
            raise click.ClickException(str(error)) from None

    monkeypatch.setattr(connection.Connection, "run", run)
    monkeypatch.setenv("TOLLGATE_API_KEY", "tg_x")
    return fake


def run(*words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(tollgate, words, input=stdin)


def done(*words: str, stdin: str = "") -> str:
    result = run(*words, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name)


@pytest.mark.parametrize("words", list(commands(tollgate)), ids=" ".join)
def test_no_flag_of_a_command_hides_another(words: tuple[str, ...]) -> None:
    """Click warns, and warnings are errors."""
    if words not in (("control",), ("proxy",), ("trainer",)):  # they become other programs
        assert run(*words, "--help").exit_code == 0


def test_endpoint_set_changes_what_flags_name_and_keeps_the_rest(api: FakeApi) -> None:
    api.answers["PATCH /v1/gateway/endpoints/ep_1"] = ENDPOINT
    done("endpoints", "set", "acme/chat", "--target-model", "new")
    done("endpoints", "set", "ep_1", "--secret", "other")
    done("endpoints", "set", "acme/chat", "--provider", "vendor_a", "--secret", "openai", "--target-model", "x")
    assert [body["targets"] for body in api.bodies("PATCH")] == [
        [{"provider": "VENDOR_B", "secret_id": "sec_1", "target_model": "new"}],
        [{"provider": "VENDOR_B", "secret_id": "sec_2", "target_model": "old"}],
        [{"provider": "VENDOR_A", "secret_id": "sec_1", "target_model": "x"}],
    ]


def test_endpoint_set_changes_options_of_the_target_and_refuses_to_change_nothing(api: FakeApi) -> None:
    api.answers["PATCH /v1/gateway/endpoints/ep_1"] = ENDPOINT
    done("endpoints", "set", "ep_1", "--upstream-state", "pass", "--dialect", "messages", "--dialect", "RESPONSES")
    done("endpoints", "set", "ep_1", "--price-options", "refuse")
    old: dict[str, Any] = dict(ENDPOINT["targets"][0])  # type: ignore[arg-type]
    assert [body["targets"] for body in api.bodies("PATCH")] == [
        [old | {"upstream_state": "PASS", "dialects": ["MESSAGES", "RESPONSES"]}],
        [old | {"price_options": "REFUSE"}],
    ]
    assert "nothing to change" in run("endpoints", "set", "ep_1").stderr


def test_endpoint_is_released_and_keeps_its_target(api: FakeApi) -> None:
    api.answers["PATCH /v1/gateway/endpoints/ep_1"] = ENDPOINT
    done("endpoints", "set", "acme/chat", "-f", "-", stdin='{"managed_by": null}')
    assert api.bodies("PATCH") == [{"managed_by": None, "targets": ENDPOINT["targets"]}]


def test_endpoint_is_created_from_a_file_and_flags(api: FakeApi) -> None:
    api.answers["POST /v1/gateway/endpoints"] = ENDPOINT
    file = json.dumps({"slug": "acme/file", "targets": [{"provider": "VENDOR_B", "target_model": "m"}]})
    done("endpoints", "create", "acme/chat", "--secret", "openai", "-f", "-", stdin=file)
    target = {"provider": "VENDOR_B", "target_model": "m", "secret_id": "sec_1"}
    assert api.bodies("POST") == [{"slug": "acme/chat", "targets": [target]}]


def test_secret_value_comes_from_standard_input_and_is_never_printed(api: FakeApi) -> None:
    api.answers["POST /v1/secrets"] = {"id": "sec_1", "name": "openai"}
    out = done("secrets", "set", "openai", stdin="sk-value\r\n")
    assert api.bodies("POST") == [{"name": "openai", "value": "sk-value"}]
    assert "sk-value" not in out
    for words, message in (
        (("create", "openai"), "there is a secret 'openai' already"),
        (("set", "none"), "there is no secret 'none'"),
    ):
        refused = run("secrets", *words, stdin="v")
        assert (refused.exit_code, message in refused.output) == (1, True)
    assert "the value is empty" in run("secrets", "set", "openai", stdin="\n").output
    assert len(api.bodies("POST")) == 1


def test_group_set_changes_one_limit_and_keeps_the_other_slugs(api: FakeApi) -> None:
    limit = {"type": "REQUEST", "unit": "DAY", "threshold": 5}
    models = [{"slug": "a/b", "rate_limits": [], "usage_limits": [limit]}, {"slug": "a/c", "rate_limits": []}]
    hierarchy = {"limit_enforcement": "INDEPENDENT", "parent_group_id": None}
    group = {"id": "grp_1", "metadata": {"external_entity_id": "g"}, "models": models, "hierarchy": hierarchy}
    group |= {"effective_models": []}
    api.answers |= {"GET /v1/gateway/groups": page(group), "PATCH /v1/gateway/groups/grp_1": group}
    done("groups", "set", "g", "--limit", "a/b:REQUEST/DAY=9", "--remove-slug", "a/c")
    done("groups", "set", "g", "--name", "")
    raised = {"slug": "a/b", "rate_limits": [], "usage_limits": [limit | {"threshold": 9}]}
    assert api.bodies("PATCH") == [{"models": [raised]}, {"metadata": {"name": None}}]
    assert "the group has no access to a/x" in run("groups", "set", "g", "--remove-slug", "a/x").output
    assert "nothing to change" in run("groups", "set", "g").output


def test_own_key_is_registered_from_a_file_or_standard_input_and_never_printed(api: FakeApi, tmp_path: Path) -> None:
    group = {"id": "grp_1", "metadata": {"external_entity_id": "g"}}
    answer = {"ok": True, "prefix": "own_0123456789ab", "name": None}
    api.answers |= {"GET /v1/gateway/groups": page(group), "POST /v1/gateway/groups/grp_1/api_keys/register": answer}
    file = tmp_path / "key"
    file.write_text("sk-of-my-own\n")
    printed = done("keys", "register", "--group", "g", stdin="sk-of-my-own\r\n")
    printed += done("keys", "register", "--group", "g", "--name", "n", "--key-file", str(file))
    assert api.bodies("POST") == [{"key": "sk-of-my-own"}, {"key": "sk-of-my-own", "name": "n"}]
    assert "own_0123456789ab" in printed
    assert "sk-of-my-own" not in printed
    assert "the key is empty: give --key-file" in run("keys", "register", "--group", "g", stdin="\n").output
    assert run("keys", "register", stdin="k").exit_code == 2
    assert len(api.bodies("POST")) == 2


def test_key_needs_a_group_or_a_type(api: FakeApi) -> None:
    assert run("keys", "create").exit_code == 2
    assert run("keys", "create", "--group", "g", "--type", "WORKSPACE_INVOKE").exit_code == 2
    api.answers["POST /v1/api_keys"] = {"api_key": "tg_y", "prefix": "tg_y"}
    assert (
        json.loads(done("keys", "create", "--type", "WORKSPACE_INVOKE", "--json")) == api.answers["POST /v1/api_keys"]
    )


def test_only_the_key_is_printed_for_a_script(api: FakeApi) -> None:
    api.answers["GET /v1/gateway/groups"] = page({"id": "grp_1", "metadata": {"external_entity_id": "g"}})
    api.answers["POST /v1/gateway/groups/grp_1/api_keys"] = {"api_key": "tg_abc.secret", "prefix": "tg_abc"}
    assert done("keys", "create", "--group", "g", "--only-key") == "tg_abc.secret\n"
    assert run("keys", "create", "--group", "g", "--only-key", "--json").exit_code == 2
    assert len(api.bodies("POST")) == 1, "the refused command made no key"


@pytest.mark.parametrize(
    ("words", "file", "place"),
    [
        (("secrets", "create"), {"name": "new", "value": "sk-v"}, "POST /v1/secrets"),
        (("secrets", "set", "sec_1"), {"value": "sk-v"}, "POST /v1/secrets"),
        (("keys", "create", "--group", "g"), {"name": "n"}, "POST /v1/gateway/groups/grp_1/api_keys"),
        (("training", "projects", "create"), {"training_project": {"name": "p"}}, "POST /v1/training_projects"),
        (
            ("models", "environments", "set", "m", "production"),
            {"deployment_id": "dep_1"},
            "PUT /v1/models/mdl_1/environments/production",
        ),
        (("models", "environments", "create", "m"), {"name": "staging"}, "POST /v1/models/mdl_1/environments"),
    ],
)
def test_every_create_and_set_takes_the_apis_json(api: FakeApi, words: tuple[str, ...], file: Any, place: str) -> None:
    api.answers |= {
        "GET /v1/gateway/groups": page({"id": "grp_1"}),
        "GET /v1/models": page({"id": "mdl_1", "name": "m"}),
    }
    api.answers[place] = {"id": "x"}
    assert "sk-v" not in done(*words, "-f", "-", stdin=json.dumps(file))
    assert [call[2] for call in api.requests if f"{call[0]} {call[1]}" == place] == [
        file | ({"name": "openai"} if "sec_1" in words else {})
    ]


def test_empty_environment_is_made_shown_and_promoted_to(api: FakeApi) -> None:
    empty = {"name": "staging", "deployment_id": None, "updated_at": "2026-11-24T00:00:00.000Z"}
    new = {"id": "dep_1", "name": "v1"}
    api.answers |= {
        "GET /v1/models": page({"id": "mdl_1", "name": "m"}),
        "GET /v1/models/mdl_1/deployments": page(new),
        "GET /v1/models/mdl_1/environments": page(empty),
        "POST /v1/models/mdl_1/environments": empty,
        "POST /v1/models/mdl_1/environments/staging/promote": new,
    }
    assert "deployment_id  -" in done("models", "environments", "create", "m", "staging")
    assert done("models", "environments", "list", "m").splitlines()[1].split()[:2] == ["staging", "-"]
    assert "v1" in done("models", "environments", "promote", "m", "staging", "v1")
    assert api.bodies("POST") == [{"name": "staging"}, {"deployment_id": "dep_1"}]
    assert "there is no deployment 'staging'" in run("models", "environments", "promote", "m", "x", "staging").stderr
    assert "give NAME" in run("models", "environments", "create", "m").stderr


def test_secret_is_deleted_by_its_id(api: FakeApi) -> None:
    api.answers["DELETE /v1/secrets/openai"] = {"id": "sec_1", "name": "openai"}
    done("secrets", "delete", "sec_1", "--yes")


def test_usage_is_listed_by_external_id(api: FakeApi) -> None:
    api.answers |= {"GET /v1/gateway/groups": page({"id": "grp_1"}), "GET /v1/gateway/groups/grp_1/usage": page()}
    assert done("usage", "list", "--group", "customer-42").startswith("SLUG")


@pytest.mark.parametrize(
    ("words", "stdin", "status", "message"),
    [
        (("groups", "create", "-f", "-"), "{", 1, "-f: not JSON"),
        (("secrets", "set", "openai"), "", 1, "the value is empty"),
        (("groups", "list", "--workspace", "acme"), "", 1, "a key is of one workspace"),
        (("events", "export", "--since", "1h", "--until", "2h"), "", 2, "--until must be after --since"),
        (("groups", "create", "--provider"), "", 2, "No such option"),
        (("--wrong",), "", 2, "No such option"),
    ],
)
def test_an_error_has_at_most_three_lines(
    api: FakeApi, words: tuple[str, ...], stdin: str, status: int, message: str
) -> None:
    refused = run(*words, stdin=stdin)
    assert (refused.exit_code, message in refused.stderr) == (status, True)
    assert len(refused.stderr.splitlines()) <= 3


def test_an_export_is_the_same_file_as_json(api: FakeApi) -> None:
    api.answers |= {
        f"GET /v1/{name}": page() for name in ("gateway/groups", "gateway/webhooks", "gateway/prices", "models")
    }
    exported = json.loads(done("export", "--json"))
    target = {"provider": "VENDOR_B", "target_model": "old", "secret": "openai"}
    assert exported["endpoints"] == [{"slug": "acme/chat", "target": target}]


def test_a_webhook_secret_that_cannot_be_written_is_told(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def append(_self: PrivateLines, _line: Any) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(PrivateLines, "append", append)
    api.answers |= {
        f"GET /v1/{name}": page() for name in ("gateway/groups", "gateway/webhooks", "gateway/prices", "models")
    }
    api.answers["POST /v1/gateway/webhooks"] = {"id": "whk_1", "secret": "whsec_x"}
    stopped = run("apply", "-", stdin="version: 1\nname: a\nwebhooks: [{url: https://a.example}]\n")
    assert (stopped.exit_code, "whsec_x" in stopped.output) == (1, False)
    assert "the signing secret of whk_1 could not be kept (No space left on device): rotate it" in stopped.stderr


def test_delete_needs_yes_where_nobody_can_be_asked(api: FakeApi) -> None:
    api.answers["DELETE /v1/gateway/endpoints/ep_1"] = {"id": "ep_1", "slug": "acme/chat"}
    refused = run("endpoints", "delete", "acme/chat")
    assert refused.exit_code == 2
    assert "--yes is needed to delete endpoint acme/chat" in refused.stderr
    assert not [call for call in api.requests if call[0] == "DELETE"]
    done("endpoints", "delete", "acme/chat", "-y")
    assert [call for call in api.requests if call[0] == "DELETE"]


def test_every_delete_needs_yes_where_nobody_can_be_asked() -> None:
    deletions = [words for words in commands(tollgate) if words[-1] == "delete"]
    assert len(deletions) >= MOST_KINDS_DELETED
    for words in deletions:
        command: Any = tollgate
        for word in words:
            command = command.commands[word]
        assert ("--yes", "-y") in [tuple(parameter.opts) for parameter in command.params], words


def test_delete_on_a_terminal_needs_a_yes(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []

    def confirm(text: str, **_options: Any) -> None:
        questions.append(text)
        raise click.Abort

    monkeypatch.setattr("commands.editing.deletion.click.confirm", confirm)
    api.answers["DELETE /v1/gateway/endpoints/ep_1"] = {"id": "ep_1", "slug": "acme/chat"}
    monkeypatch.setattr("commands.editing.deletion.is_terminal", lambda: True)
    assert run("endpoints", "delete", "acme/chat").exit_code == 1
    run("keys", "delete", "tg_x\x1b[8m")
    assert questions == ["Delete endpoint acme/chat?", "Delete key tg_x\N{REPLACEMENT CHARACTER}[8m?"]
    assert not [call for call in api.requests if call[0] == "DELETE"]
    done("endpoints", "delete", "acme/chat", "--yes")


def test_statement_of_an_entity_without_calls_says_so(api: FakeApi) -> None:
    """A misspelt entity must not pass for one that owes nothing."""
    window = {"start_time": "2026-10-01T00:00:00.000Z", "end_time": "2026-11-01T00:00:00.000Z"}
    api.answers["GET /v1/gateway/usage_report"] = {**page(), "window": window}
    words = ("usage", "statement", "--month", "2026-10", "--entity", "costumer-1")
    assert "'costumer-1' has no calls in 2026-10" in run(*words).stderr
    refused = run(*words, "--json", "--output", "x.html")
    assert (refused.exit_code, "leave out --output" in refused.stderr) == (2, True)


def test_invoice_of_a_provider_without_endpoints_is_not_compared(api: FakeApi, tmp_path: Path) -> None:
    """A misspelt provider would leave out every event."""
    invoice = tmp_path / "invoice.csv"
    invoice.write_text("day,output\n")
    end = "2026-11-02T00:00:00.000Z"
    api.answers["GET /v1/gateway/events"] = {**page(), "window": {"start_time": end, "end_time": end}}
    words = ("events", "reconcile", "--start", "2026-11-01", "--end", "2026-11-02", "--invoice", str(invoice))
    assert "no differences" in done(*words, "--provider", "vendor_b")
    assert "GET /console/tables.json" not in [f"{verb} {where}" for verb, where, _, _ in api.requests]
    api.answers["GET /console/tables.json"] = {"providers": [{"name": "VENDOR_B", "provider": "VENDOR_B"}]}
    assert "no endpoint has the provider 'VENDOR_X'" in run(*words, "--provider", "VENDOR_X").stderr


@pytest.mark.parametrize("provider", ["PLATFORM", "HOUSE"])
def test_reconcile_knows_the_aliases_of_the_installation(api: FakeApi, tmp_path: Path, provider: str) -> None:
    """The event is of a slug whose endpoint was written with the other name."""
    invoice = tmp_path / "invoice.csv"
    invoice.write_text("model,calls\nm,1\n")
    end = "2026-11-02T00:00:00.000Z"
    event = listed_event(0, 1_793_534_400_000, slug="acme/house")
    api.answers["GET /v1/gateway/events"] = {**page(event), "window": {"start_time": end, "end_time": end}}
    own_names = {"HOUSE": "PLATFORM", "PLATFORM": "PLATFORM", "VENDOR_B": "VENDOR_B"}
    api.answers["GET /console/tables.json"] = {
        "providers": [{"name": name, "provider": own} for name, own in own_names.items()]
    }
    other = "HOUSE" if provider == "PLATFORM" else "PLATFORM"
    house = {"slug": "acme/house", "targets": [{"provider": other, "model_id": "mdl_1", "target_model": "m"}]}
    api.answers["GET /v1/gateway/endpoints"] = page(ENDPOINT, house)
    words = ("events", "reconcile", "--start", "2026-11-01", "--end", "2026-11-02", "--invoice", str(invoice))
    assert "no differences" in done(*words, "--provider", provider)


def test_logs_prints_the_latest_lines_up_to_its_limit_though_a_page_has_more(api: FakeApi) -> None:
    members = {"timestamp": "1000000", "level": "INFO", "replica": None, "request_id": None}
    api.answers["POST /v1/training_jobs/search"] = {"training_jobs": [{"id": "tj_1", "training_project_id": "tp_1"}]}
    api.answers["POST /v1/training_projects/tp_1/jobs/tj_1/logs"] = {
        "logs": [members | {"message": f"line {n}"} for n in (3, 2, 1)]
    }
    printed = done("training", "jobs", "logs", "tj_1", "--limit", "2").splitlines()
    assert [line.rpartition("line ")[2] for line in printed] == ["2", "3"]


def group_item(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"grp_{number}",
        "metadata": {"external_entity_id": f"g{number}", "name": None},
        "models": [],
        "effective_models": [],
        "hierarchy": {"limit_enforcement": "INDEPENDENT", "parent_group_id": None},
        **more,
    }


def pages_of_groups(api: FakeApi, *items: dict[str, Any]) -> None:
    """Two items a page."""

    def answer(_body: Any, query: Any) -> Any:
        start = int(query.get("cursor", 0))
        more = start + 2 < len(items)
        return page(*items[start : start + 2], cursor=str(start + 2) if more else None)

    api.answers["GET /v1/gateway/groups"] = answer


def test_groups_tree_asks_once_a_page_and_tells_how_many_it_has_read(api: FakeApi) -> None:
    pages_of_groups(api, *(group_item(n, usage=[]) for n in range(5)))
    own = {"calls": 2, "cost": {"EUR": "0.10"}, "unpriced_calls": 0}
    api.answers["GET /v1/gateway/usage_report"] = page({"group_id": "grp_1", **own, "own": own})
    result = run("groups", "tree")
    calls = {1: "    2 calls, 0.10 EUR today"}
    drawn = [(f"g{n}  grp_{n}", calls.get(n, "    no calls today")) for n in range(5)]
    assert result.stdout.splitlines() == [line for lines in drawn for line in lines]
    assert result.stderr.splitlines() == ["2 groups read", "4 groups read"]
    first = {"limit": 1000, "effective_models": "false", "usage": "true"}
    *groups, report = [query for *_, query in api.requests]
    assert groups == [first, {"cursor": "2"}, {"cursor": "4"}]
    assert (report["group_by"], report["rollup"]) == ("entity", "true")
    assert report["start"].endswith("T00:00:00.000Z")


def test_groups_tree_of_a_group_asks_for_it_and_those_below_it(api: FakeApi) -> None:
    api.answers["GET /v1/gateway/groups/grp_1"] = group_item(1)
    pages_of_groups(api, group_item(1))
    trees = json.loads(done("groups", "tree", "grp_1", "--no-usage", "--json"))
    assert trees == [group_item(1, usage=[], children=[])]
    assert api.requests[-1][3] == {"limit": 1000, "top_group_id": "grp_1"}


def test_groups_tree_says_whose_usage_is_not_known_while_redis_is_away(api: FakeApi) -> None:
    daily = [{"slug": "acme/chat", "rate_limits": [], "usage_limits": [{}]}]

    def answer(_body: Any, query: Any) -> Any:
        if "usage" in query:
            raise AwayError("503: Counters unavailable")
        return page(group_item(1), group_item(2, effective_models=daily))

    api.answers["GET /v1/gateway/groups"] = answer
    api.answers["GET /v1/gateway/usage_report"] = page()
    lines = [line for line in done("groups", "tree").splitlines() if "today" not in line]
    assert lines == ["g1  grp_1", "g2  grp_2", "    usage is not known"]


def test_export_tells_how_many_groups_it_has_read(api: FakeApi) -> None:
    for name in ("endpoints", "webhooks", "prices"):
        api.answers[f"GET /v1/gateway/{name}"] = page()
    api.answers |= {"GET /v1/secrets": page(), "GET /v1/models": page()}
    pages_of_groups(api, *(group_item(n) for n in range(3)))
    result = run("export")
    assert result.stderr == "2 groups read\n"
    assert result.stdout.count("external_entity_id") == 3


PRICE = ("prices", "set", "acme/chat", "--from", "2026-11-01", "--currency", "EUR", "--input", "3", "--output", "15")


def test_price_set_sends_what_flags_say_in_the_form_of_the_api(api: FakeApi) -> None:
    api.answers["PUT /v1/gateway/prices"] = lambda body, _query: {
        "cached_input_per_million": "",
        "per_call": "",
        **body,
    }
    done(*PRICE)
    long_context = ("above=200000", "input=6", "cached-input=0.6", "output=22.5")
    flags = [word for member in long_context for word in ("--long-context", member)]
    flags += ["--service-tier", "flex=0.5", "--service-tier", "a=b=1.75", "--max-output-tokens", "64000"]
    flags += ["--cache-write-1h", "6", "--audio-output", "80", "--per-server-tool-call", "0.01"]
    assert "above 200000" in done(*PRICE, *flags)
    plain, whole = api.bodies("PUT")
    assert set(plain) == {"slug", "valid_from", "currency", "input_per_million", "output_per_million"}
    assert {name: member for name, member in whole.items() if name not in plain} == {
        "cache_write_1h_per_million": "6",
        "audio_output_per_million": "80",
        "per_server_tool_call": "0.01",
        "long_context": {
            "above_input_tokens": 200_000,
            "input_per_million": "6",
            "cached_input_per_million": "0.6",
            "output_per_million": "22.5",
        },
        "service_tiers": {"flex": {"multiplier": "0.5"}, "a=b": {"multiplier": "1.75"}},
        "max_output_tokens": 64_000,
    }
    assert "TIER=FACTOR" in run(*PRICE, "--service-tier", "flex").stderr


def test_details_of_a_webhooks_messages_are_chosen_by_a_flag(api: FakeApi) -> None:
    webhook = {"id": "whk_1", "url": "https://a.example"}
    api.answers |= {
        "POST /v1/gateway/webhooks": webhook,
        "PATCH /v1/gateway/webhooks/whk_1": webhook,
        "GET /v1/gateway/webhooks": page(webhook),
    }
    done("webhooks", "create", "https://a.example")
    done("webhooks", "create", "https://a.example", "--include-details")
    done("webhooks", "set", "whk_1", "--no-include-details")
    assert [*api.bodies("POST"), *api.bodies("PATCH")] == [
        {"url": "https://a.example"},
        {"url": "https://a.example", "include_details": True},
        {"include_details": False},
    ]


def test_prices_import_sets_all_slugs_and_tells_what_it_leaves_out(api: FakeApi, tmp_path: Path) -> None:
    api.answers |= {"PUT /v1/gateway/prices": lambda body, _query: body, "GET /v1/gateway/prices": page()}
    path = tmp_path / "map.json"
    costs = {"input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06}
    path.write_text(json.dumps({"m1": costs, "m2": {**costs, "input_cost_per_image": 1}}))
    words = ("prices", "import", str(path), "--slug", "acme/a=m1", "--slug", "acme/b=m2", "--from", "2026-12-01")
    assert "No price was set." in done(*words, "--dry-run")
    assert api.bodies("PUT") == []
    result = run(*words)
    assert "2 of 2 prices set" in result.stdout
    assert "acme/b: input_cost_per_image is left out" in result.stderr
    head = {"valid_from": "2026-12-01", "currency": "USD", "input_per_million": "1", "output_per_million": "2"}
    assert api.bodies("PUT") == [{"slug": "acme/a", **head}, {"slug": "acme/b", **head}]
    assert "no model 'm3'; near it are" in run(*words, "--slug", "acme/c=m3").stderr
    assert "must be a date" in run(*words[:-1], "tomorrow").stderr
    assert "SLUG=NAME" in run(*words, "--slug", "acme/c").stderr
    assert len(api.bodies("PUT")) == 2


def test_alerts_are_chosen_by_flags(api: FakeApi) -> None:
    webhook = {"id": "whk_1", "url": "https://a.example"}
    group = group_item(1)
    api.answers |= {
        "POST /v1/gateway/webhooks": webhook,
        "PATCH /v1/gateway/webhooks/whk_1": webhook,
        "GET /v1/gateway/webhooks": page(webhook),
        "GET /v1/gateway/groups": page(group),
        "POST /v1/gateway/groups": group,
        "PATCH /v1/gateway/groups/grp_1": group,
    }
    done("webhooks", "create", "https://a.example", "--event-type", "limit_alert", "--group", "g1")
    done("webhooks", "set", "whk_1", "--event-type", "LIMIT_ALERT", "--event-type", "API_BILLING_USAGE")
    done("groups", "create", "g1", "--alert-percent", "80", "--alert-percent", "50")
    done("groups", "set", "g1", "--alert-percent", "none")
    assert "none alone" in run("groups", "set", "g1", "--alert-percent", "x").stderr
    assert [*api.bodies("POST"), *api.bodies("PATCH")] == [
        {"url": "https://a.example", "event_types": ["LIMIT_ALERT"], "group_id": "grp_1"},
        {"metadata": {"external_entity_id": "g1"}, "alert_percents": [80, 50]},
        {"event_types": ["LIMIT_ALERT", "API_BILLING_USAGE"]},
        {"alert_percents": []},
    ]


DAILY = {"unit": "DAY", "amount": "100.00", "currency": "EUR", "enforcement": "SOFT"}


def test_spend_limits_are_set_by_flags_and_shown_with_their_source(api: FakeApi) -> None:
    monthly = DAILY | {"unit": "MONTH"}
    group = group_item(1, spend_limits=[monthly], effective_spend_limits=[DAILY | {"source_group": "grp_top"}])
    api.answers |= {
        "GET /v1/gateway/groups": page(group),
        "POST /v1/gateway/groups": group,
        "PATCH /v1/gateway/groups/grp_1": group,
    }
    done("groups", "create", "g1", "--spend-limit", "day=100,eur")
    done("groups", "set", "g1", "--spend-limit", "DAY=100,EUR", "--name", "n")
    done("groups", "set", "g1", "--spend-limit", "MONTH=none")
    done("groups", "set", "g1", "--spend-limit", "DAY=none", "-f", "-", stdin=json.dumps({"spend_limits": [DAILY]}))
    assert "expected UNIT=AMOUNT,CURRENCY" in run("groups", "set", "g1", "--spend-limit", "DAY=1").stderr
    assert [*api.bodies("POST"), *api.bodies("PATCH")] == [
        {"metadata": {"external_entity_id": "g1"}, "spend_limits": [DAILY]},
        {"metadata": {"name": "n"}, "spend_limits": [monthly, DAILY]},
        {"spend_limits": []},
        {"spend_limits": []},
    ]
    lines = [line.split(maxsplit=1) for line in done("groups", "get", "g1").splitlines()]
    assert ["spend_limits", "100.00 EUR/MONTH SOFT"] in lines
    assert ["effective_spend_limits", "100.00 EUR/DAY SOFT, set by grp_top"] in lines


def test_spend_limits_of_a_control_that_knows_none_are_added_to(api: FakeApi) -> None:
    api.answers |= {"GET /v1/gateway/groups": page(group_item(1)), "PATCH /v1/gateway/groups/grp_1": group_item(1)}
    done("groups", "set", "g1", "--spend-limit", "DAY=100,EUR")
    assert api.bodies("PATCH") == [{"spend_limits": [DAILY]}]


def test_spend_of_a_group_is_printed(api: FakeApi) -> None:
    figures = {"spent": "12.3456", "reserved": "0.50", "remaining": "87.1544", "reset_at": "2026-11-30T00:00:00.000Z"}
    answer = {"items": [DAILY | figures | {"source_group": "grp_1"}]}
    api.answers |= {"GET /v1/gateway/groups": page(group_item(1)), "GET /v1/gateway/groups/grp_1/spend": answer}
    head, row = done("groups", "spend", "g1").splitlines()
    columns = "UNIT SPENT RESERVED REMAINING LIMIT CURRENCY ENFORCEMENT SET BY RESET"
    assert " ".join(head.split()) == columns
    assert row.split() == ["DAY", "12.3456", "0.50", "87.1544", "100.00", "EUR", "SOFT", "grp_1", figures["reset_at"]]
    assert json.loads(done("groups", "spend", "g1", "--json")) == answer


def test_balance_is_paid_into_and_printed(api: FakeApi) -> None:
    figures = {"currency": "EUR", "credited": "100.00", "spent": "12.50", "reserved": "0.00", "available": "87.50"}
    credit: dict[str, Any] = {
        "type": "CREDIT",
        "amount": "100.00",
        "currency": "EUR",
        "timestamp": "2026-11-29T10:00:00.000Z",
    }
    credit |= {"reference": "INV-1", "note": "November", "slug": None, "calls": None}
    draw = credit | {
        "type": "DRAW",
        "amount": "-12.50",
        "reference": None,
        "note": None,
        "slug": "acme/chat",
        "calls": 3,
    }
    under = "/v1/gateway/groups/grp_1/balance"
    api.answers |= {
        "GET /v1/gateway/groups": page(group_item(1)),
        f"GET {under}": figures,
        f"POST {under}/credits": credit,
        f"GET {under}/entries": page(draw, credit),
    }
    flags = ("--currency", "EUR", "--reference")
    lines = done("groups", "credit", "g1", "--amount", "100.00", *flags, "INV-1", "--note", "November").splitlines()
    assert ["reference", "INV-1"] in [line.split() for line in lines]
    done("groups", "credit", "g1", "--amount", "-5", *flags, "BACK-1")
    assert "--reference" in run("groups", "credit", "g1", "--amount", "1", "--currency", "EUR").stderr
    assert api.bodies("POST") == [
        {"amount": "100.00", "currency": "EUR", "reference": "INV-1", "note": "November"},
        {"amount": "-5", "currency": "EUR", "reference": "BACK-1"},
    ]
    assert [line.split() for line in done("groups", "balance", "g1").splitlines()] == [
        [*one] for one in figures.items()
    ]
    head, drawn, paid = done("groups", "entries", "g1").splitlines()
    assert head.split() == ["TIME", "TYPE", "AMOUNT", "CURRENCY", "SLUG", "CALLS", "REFERENCE", "NOTE"]
    assert drawn.split()[1:] == ["DRAW", "-12.50", "EUR", "acme/chat", "3", "-", "-"]
    assert paid.split()[1:] == ["CREDIT", "100.00", "EUR", "-", "-", "INV-1", "November"]


def test_group_with_credit_left_is_deleted_when_that_is_forfeited(api: FakeApi) -> None:
    api.answers |= {"GET /v1/gateway/groups": page(group_item(1)), "DELETE /v1/gateway/groups/grp_1": {"id": "grp_1"}}
    done("groups", "delete", "g1", "--yes")
    done("groups", "delete", "g1", "--forfeit", "--yes")
    assert [query for verb, _, _, query in api.requests if verb == "DELETE"] == [{}, {"forfeit": "true"}]


def test_reconcile_compares_what_is_spent(api: FakeApi) -> None:
    group = {
        "id": "grp_1",
        "metadata": {"external_entity_id": "customer"},
        "hierarchy": {"limit_enforcement": "CASCADING"},
        "effective_spend_limits": [{}],
    }
    item = {"unit": "DAY", "currency": "EUR", "reset_at": "2026-12-01T00:00:00.000Z"}
    own = item | {"spent": "1.50", "source_group": "grp_1"}
    of_ancestor = item | {"spent": "9.00", "source_group": "grp_top"}
    api.answers["GET /v1/gateway/groups"] = page(group)
    api.answers["GET /v1/gateway/groups/grp_1/spend"] = {"items": [own, of_ancestor]}
    api.answers["GET /v1/gateway/usage_report"] = page({"group_id": "grp_1", "cost": {"EUR": "1.5"}, "own": {}})
    assert done("events", "reconcile", "--spend") == "1 groups compared, 0 balances compared\nno differences\n"


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        ((), "give --journal, --invoice or both, or --spend"),
        (("--journal", "."), "give --since and --until"),
        (("--spend", "--since", "2026-11-01"), "--spend goes alone"),
        (("--spend", "--start=2026-11-01"), "--spend goes alone"),
        (("--start", "tomorrow"), "expected ISO 8601"),
    ],
)
def test_reconcile_says_which_flags_go_together(api: FakeApi, flags: tuple[str, ...], remedy: str) -> None:
    result = run("events", "reconcile", *flags)
    assert result.exit_code == 2
    assert remedy in result.output.replace("\n", " ")
    assert not api.requests


def test_empty_list_of_events_says_when_events_appear(api: FakeApi) -> None:
    api.answers["GET /v1/gateway/events"] = page()
    result = run("events", "list", "--since", "today")
    assert result.exit_code == 0
    assert "about a minute after the call has ended" in result.stderr
    assert api.requests[-1][3]["start_time"].endswith("T00:00:00.000Z")
    assert json.loads(done("events", "list", "--json"))["items"] == []


def test_flags_that_were_renamed_still_work(api: FakeApi) -> None:
    window = {"start_time": "2026-11-01T00:00:00.000Z", "end_time": "2026-11-02T00:00:00.000Z"}
    api.answers["GET /v1/gateway/usage_report"] = {**page(), "window": window}
    for flags in (("--start", "2026-11-01", "--end=2026-11-02"), ("--since", "2026-11-01", "--until", "2026-11-02")):
        done("usage", "report", *flags)
        query = api.requests[-1][3]
        assert (query["start"], query["end"]) == (window["start_time"], window["end_time"])
    assert "--start" not in done("usage", "report", "--help")


@pytest.mark.parametrize("flag", ["--entity", "--group"])
@pytest.mark.parametrize("name", ["customer", "grp_1", "grp_none"])
def test_groups_are_named_by_either_flag_and_either_id(api: FakeApi, flag: str, name: str) -> None:
    item = group_item(1)
    external_id = item["metadata"]["external_entity_id"]
    api.answers |= {"GET /v1/gateway/groups/grp_1": item, "GET /v1/gateway/events": page()}
    window = {"start_time": "2026-10-01T00:00:00.000Z", "end_time": "2026-11-01T00:00:00.000Z"}
    api.answers["GET /v1/gateway/usage_report"] = {**page(), "window": window}
    expected = external_id if name == "grp_1" else name
    done("events", "list", flag, name)
    assert api.requests[-1][3]["external_entity_ids"] == [expected]
    done("usage", "report", "--since", "today", flag, name)
    assert api.requests[-1][3]["external_entity_id"] == expected
    assert f"{expected!r} has no calls" in run("usage", "statement", "--month", "2026-10", flag, name).stderr


def test_requests_are_listed_with_their_reason(api: FakeApi) -> None:
    limit = {"group_id": "grp_1", "type": "REQUEST", "unit": "MINUTE", "threshold": 100}
    refusal = {
        "request_id": "r-1",
        "timestamp": "2026-11-24T00:00:00.000Z",
        "external_entity_id": "customer-42",
        "api_key_prefix": "tg_abc",
        "slug": "acme/chat",
        "path": "/v1/chat/completions",
        "status": 429,
        "error_code": "RATE_LIMITED",
        "limit": limit,
        "time_to_first_byte_ms": None,
        "duration_ms": 1.4,
        "tokens": None,
        "cost": None,
        "event_key": None,
        "weight": 12,
    }
    tokens = {"inputTokens": 20, "outputTokens": 10, "cachedInputTokens": 0}
    success = refusal | {"status": 200, "error_code": None, "limit": None, "weight": 1, "tokens": tokens}
    success["cost"] = {"amount": "0.00021", "currency": "EUR"}
    api.answers["GET /v1/gateway/requests"] = page(refusal, success, cursor="next") | {"sampled": True}
    result = run(
        "requests", "list", "--request-id", "r-1", "--entity", "customer-42", "--status", "4xx", "--limit", "2"
    )
    assert result.exit_code == 0, result.output
    assert "RATE_LIMITED: 100 REQUEST MINUTE" in result.stdout
    assert "0.00021 EUR" in result.stdout
    assert "20 + 10" in result.stdout
    assert "Some stand for several calls" in result.stderr
    assert "There are more" in result.stderr
    filters = {"request_id": "r-1", "external_entity_id": "customer-42", "status": "4xx", "limit": 2}
    assert api.requests == [("GET", "/v1/gateway/requests", None, filters)]
