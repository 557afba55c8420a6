"""The tables of docs/reference, compared with the code: errors, settings, metrics, operations, commands, tiers."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import get_args

import click
import pytest

from control.api.platform.deployment_schemas import HealthCheckRequestV1, Status, UpdateDeploymentRequestV1
from control.api.protocol.errors import TABLE as DOMAIN_ERRORS
from control.api.protocol.operations import Operation
from control.app import OPERATIONS
from control.operator.cli import tollgate
from control.records.loads import UNREPORTED
from control.records.models import DeploymentRecord
from control.resources.platform import statuses
from control.resources.training.job_states import TRANSITIONS
from control.settings import Settings as ControlSettings
from control.throttle import allowance_for
from policy.deployments import (
    ACTIVE,
    DEPLOYING,
    HAS_FAILED,
    LOADING_MODEL,
    MOVES_FROM_OUTSIDE,
    NOT_SERVING,
    PARKING,
    SCALED_TO_ZERO,
    HealthCheck,
)
from policy.endpoints import PROVIDERS
from policy.limits.async_limits import LOOK_UPS, SUBMISSIONS
from policy.limits.kinds import LimitType, Unit
from policy.limits.tiers import DEFAULT_TIERS
from proxy.http_rules.guarded_members import check_members
from proxy.http_rules.headers import DIRECT_FORWARDED_FIELDS, DIRECT_RETURNED_FIELDS, FORWARDED_FIELDS, RETURNED_FIELDS
from proxy.refusals import BUG, TABLE, MalformedRequestError
from proxy.settings import settings_from
from runtime.setting_names import NAMES
from trainer.settings import Settings as TrainerSettings

ROOT = Path(__file__).resolve().parent.parent
SETTING = re.compile(r"\bTOLLGATE_[A-Z_]+[A-Z]\b")
METRIC = re.compile(r'"((?:tollgate|platform_model_api)_[a-z_]+)"')
CODE = re.compile(r'ProblemError\(\s*(\d{3}), "([A-Z_]+)"')
DEPLOYMENT = "/v1/models/{model_id}/deployments/{deployment_id}"
REQUIRED = {
    "TOLLGATE_REDIS_URL": "redis://127.0.0.1",
    "TOLLGATE_INTERNAL_TOKEN": "sixteen characters",
    "TOLLGATE_SECRET_KEY": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
}


def page(name: str) -> str:
    return (ROOT / "docs/reference" / f"{name}.md").read_text()


def rows(name: str, heading: str) -> list[list[str]]:
    """The cells of the tables below a heading, without code quotes and header rows."""
    section = re.split(r"^## ", page(name).partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    heads = {number - 1 for number, line in enumerate(lines) if line.startswith("|---")}
    row_lines = [line for number, line in enumerate(lines) if number not in heads and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in row_lines]


def plain(cell: str) -> str:
    return cell.strip("`")


def sources(*planes: str) -> Iterator[str]:
    return (path.read_text() for plane in planes for path in sorted((ROOT / plane).rglob("*.py")))


def test_refusal_table_matches_the_code() -> None:
    table = {(int(status), plain(code), plain(message)) for status, code, message, _when in rows("inference", "Errors")}
    coded = {(row.status, row.code or "none", row.message or "—") for row in (*TABLE.values(), BUG)}
    assert table == coded


def test_management_api_error_codes_match_the_table() -> None:
    table = {
        (int(status), code)
        for status, codes, _when in rows("management-api", "Errors")
        for code in re.findall("`([A-Z_]+)`", codes)
    }
    coded = {(int(status), code) for text in sources("control") for status, code in CODE.findall(text)}
    coded |= set(DOMAIN_ERRORS.values())
    assert len(coded) > 10
    assert coded <= table


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: f"{operation.method} {operation.path}")
def test_every_operation_is_documented(operation: Operation) -> None:
    words = f"{operation.method} {re.sub('/(development|production)(?=/|$)', '/{deployment_id}', operation.path)}"
    text = page("management-api") + page("events-and-webhooks") + page("usage-reports") + page("training")
    assert re.search(re.escape(words) + r"(?![\w/])", text), words


def test_transitions_of_training_jobs_match_the_table() -> None:
    queued_and_placed = ("CREATED", "PENDING", "DEPLOYING", "RUNNING")
    table = {
        (status, plain(event), plain(after))
        for _what, event, *cells in rows("training", "Statuses")
        for status, after in zip(queued_and_placed, cells, strict=True)
        if after
    }
    coded = {
        (status.removeprefix("TRAINING_JOB_"), event.value, after.removeprefix("TRAINING_JOB_"))
        for status, moves in TRANSITIONS.items()
        for event, after in moves.items()
    }
    assert table == coded


def test_settings_table_lists_every_setting() -> None:
    names = [plain(name) for name, *_rest in rows("settings", "All settings")]
    assert sorted(names) == sorted(NAMES)


def test_settings_table_names_the_process_that_reads_each_setting() -> None:
    read = {
        plane: {name for text in sources(plane) for name in SETTING.findall(text)}
        for plane in ("control", "proxy", "trainer")
    }
    read["proxy"] |= {provider.base_url.setting for provider in PROVIDERS.values() if provider.base_url is not None}
    control = set(SETTING.findall((ROOT / "control/settings.py").read_text()))
    for name, readers, *_rest in rows("settings", "All settings"):
        processes = set(readers.replace("both", "control, proxy").split(", "))
        for plane in ("proxy", "trainer"):
            assert (plane in processes) == (plain(name) in read[plane]), name
        assert ("control" in processes) == (plain(name) in control), name


def test_settings_table_shows_the_default_values() -> None:
    proxy = settings_from(REQUIRED)
    control = ControlSettings.from_environ(REQUIRED)
    defaults = {**{name: getattr(control, name) for name in control.__slots__}}
    defaults |= asdict(proxy.capacity) | {name: getattr(proxy, name) for name in proxy.__slots__}
    defaults |= {f"async_{name}": value for name, value in asdict(proxy.async_requests).items()}
    trainer = TrainerSettings.from_environ(REQUIRED)
    defaults |= {"training_stop_grace_s": trainer.stop_grace_s, "ray_images": trainer.has_ray_images}
    checked = 0
    for name, _readers, default, *_rest in rows("settings", "All settings"):
        if (number := re.match(r"[\d.]+\b", default)) is not None:
            field = plain(name).removeprefix("TOLLGATE_").lower().removeprefix("control_")
            assert float(number.group()) == defaults[field], name
            checked += 1
    assert checked > 20


def test_metrics_table_matches_the_code() -> None:
    coded = {name for text in sources("proxy", "control", "runtime") for name in METRIC.findall(text)}
    coded -= {"tollgate_console", "tollgate_console_login", "tollgate_writes"}  # two cookies and an option of ours
    names = {plain(row[0]) for heading in ("Proxy metrics", "Control metrics") for row in rows("metrics", heading)}
    assert {name.removesuffix("_total") for name in names} == {name.removesuffix("_total") for name in coded}


def commands(group: click.Group, words: str = "tollgate") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{words} {name}")
        else:
            yield f"{words} {name}", command


def commands_told() -> str:
    """Every page of the reference: a large command has one of its own."""
    pages = sorted((ROOT / "docs/reference").glob("*.md"))
    return "".join(file.read_text().partition("## Not built")[0] for file in pages)


@pytest.mark.parametrize(
    ("words", "command"), list(commands(tollgate)), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_and_its_flags_are_documented(words: str, command: click.Command) -> None:
    documented = commands_told()
    assert f"`{words}" in documented
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.opts[0] in documented, parameter.opts


_COMMAND = re.compile(rf"(?:^|[\s/(`])tollgate ((?:{'|'.join(tollgate.commands)})\b[^`#|<>)\n]*)")


def commands_of_guides() -> list[tuple[str, str]]:
    """Every `tollgate` command in a code block of README and the guides, behind the place that it has."""
    lines: list[tuple[str, str]] = []
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in re.findall(r"^ *```\w*\n(.*?)^ *```", file.read_text(), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                lines += [(f"{file.name}: {line.strip()}", match[1]) for match in _COMMAND.finditer(line)]
    return lines


@pytest.mark.parametrize(("place", "text"), commands_of_guides())
def test_every_command_in_a_guide_is_one_with_these_flags(place: str, text: str) -> None:
    command: click.Command = tollgate
    words = shlex.split(text)
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command = command.commands[words.pop(0)]
        context = click.Context(command, parent=context)
    command.make_parser(context).parse_args(words)


def test_tier_table_shows_the_default_values() -> None:
    table = {
        plain(name): (requests, tokens.replace(" ", "")) for name, requests, tokens in rows("limits", "Model API tiers")
    }
    assert {
        name: (str(tier.requests_per_minute), str(tier.tokens_per_minute)) for name, tier in DEFAULT_TIERS.items()
    } == {name: figures for name, figures in table.items() if not name.startswith("custom")}


def test_limits_of_asynchronous_requests_match_the_code() -> None:
    units = {Unit.SECOND: "any second", Unit.MINUTE: "any minute"}
    bounds = [bound for _calls, bound in rows("limits", "Asynchronous requests")]
    assert bounds == [f"{limit.threshold} in {units[limit.unit]}" for limit in (SUBMISSIONS, LOOK_UPS, LOOK_UPS)]


def test_provider_table_matches_the_code() -> None:
    table = [row for row in rows("management-api", "Targets") if len(row) == 4]
    names = {plain(row[0]): [set(re.findall("`(.+?)`", cell)) for cell in row[2:]] for row in table}
    assert names == {name: [set(rules.required), set(rules.optional)] for name, rules in PROVIDERS.items()}


def test_deployment_statuses_match_the_code() -> None:
    _serving, parked, refused = ({*re.findall("`([A-Z_]+)`", row[0])} for row in rows("inference", "Replicas"))
    assert parked == PARKING
    assert refused == NOT_SERVING


def test_deployment_setting_tables_match_the_schema() -> None:
    table = {plain(row[0]): row[1:] for row in rows("management-api", "Deployments")}
    checked = 0
    for schema in (UpdateDeploymentRequestV1, HealthCheckRequestV1):
        for name, field in schema.model_json_schema()["properties"].items():
            what, default = table[name]
            kind = field["anyOf"][0]
            if "minimum" in kind:
                least, most = (str(kind[bound]).removesuffix(".0") for bound in ("minimum", "maximum"))
                assert what.replace(" ", "").endswith(f",{least}to{most}"), name
                checked += 1
            if field.get("default") is not None:
                assert plain(default) == str(field["default"]).removesuffix(".0"), name
    assert checked == 6


def test_status_table_matches_the_code() -> None:
    records = [
        DeploymentRecord("d", "m", "first", "", replicas, 1, 1, wake_url=url, health=health)
        for replicas, url, health in product(((), ("http://r",)), (None, "http://w"), (None, HealthCheck()))
    ]
    statuses_of_table = []
    for status, activate, retry, may_set in rows("management-api", "Statuses"):
        present = plain(status)
        statuses_of_table.append(present)
        activated = {statuses.activated(replace(record, status=present), UNREPORTED).status for record in records}
        outcomes = {"unchanged": {present}, "taken up": {ACTIVE, LOADING_MODEL, SCALED_TO_ZERO, DEPLOYING}}
        assert activated == outcomes[activate], present
        assert (retry == "taken up") == (present in HAS_FAILED), present
        assert {*re.findall("`([A-Z_]+)`", may_set)} == MOVES_FROM_OUTSIDE.get(present, set()), present
    assert statuses_of_table == list(get_args(Status))


def test_request_limits_match_the_code() -> None:
    bounds = [bound for _what, bound in rows("management-api", "Request limits")]
    limits = [
        allowance_for("POST", f"{DEPLOYMENT}/{verb}") for verb in ("activate", "deactivate", "retry", "logs", "x")
    ]
    units = {60_000: "a minute", 1_000: "a second"}
    assert bounds == [f"{limit.requests} {units[limit.window_ms]}" for limit in limits]


def test_documented_limit_kinds_match_the_table() -> None:
    units = {unit: f"`{'rate' if unit.is_rolling else 'usage'}_limits`" for unit in Unit}
    table = [cells[:2] for cells in rows("limits", "Kinds")]
    assert [name for name, _ in table] == [*LimitType, *Unit]
    assert dict(table[len(LimitType) :]) == units


def test_documented_header_lists_match_the_code() -> None:
    text = page("inference").partition("## Headers")[2]
    forwarded = text.partition("**Upstream get**")[2].partition("with what the dialect adds")[0]
    answered = text.partition("**Callers get**")[2].partition("Upstream `x-ratelimit")[0]
    assert set(re.findall("`([a-z-]+)`", forwarded)) == set(FORWARDED_FIELDS)
    assert set(re.findall("`([a-z-]+)`", answered)) == RETURNED_FIELDS


def test_direct_calls_header_lists_match_the_code() -> None:
    text = (
        page("inference")
        .partition("## Direct calls")[2]
        .partition("Besides the [fields")[2]
        .partition("The key goes")[0]
    )
    forwarded, _, answered = text.partition("callers get")
    assert set(re.findall("`([a-z-]+)`", forwarded)) == set(DIRECT_FORWARDED_FIELDS) - set(FORWARDED_FIELDS)
    assert set(re.findall("`([a-z-]+)`", answered)) == DIRECT_RETURNED_FIELDS - RETURNED_FIELDS | {"content-length"}


def test_documented_guarded_members_are_refused_with_a_wrong_type() -> None:
    members = {
        name for names, _type in rows("inference", "Request bodies") for name in re.findall("`([a-z_.]+)`", names)
    }
    assert len(members) == 14
    for name in members - {"model"}:
        outer, _, inner = name.partition(".")
        with pytest.raises(MalformedRequestError, match=name):
            check_members({outer: {inner: "text"} if inner else "text"})
