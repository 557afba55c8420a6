"""The promises of the recipes in CONTRIBUTING.md: whoever forgets a step of one sees a test fail here.

Most steps have a test of their own elsewhere; the recipe's table names it.
"""

import ast
import re
from pathlib import Path

import pytest

from commands.edges.forwarding.parquet_parts import ParquetParts
from commands.policy_file.schema import SCHEMA, in_file
from commands.resources.endpoints import create
from commands.resources.events import DETAILED_EVENTS, EVENTS
from control.api.console.pages import PAGES
from control.api.endpoints import GatewayTargetV1
from control.api.events import GatewayEventDetailsV1, GatewayEventV1
from control.edges.sql.events.ingest import NewEvent
from control.edges.sql.tables import DETAIL_FIGURES, events
from control.errors import DomainError
from policy.billing import BillingEvent, Details
from policy.endpoints import PROVIDERS
from policy.limits.kinds import KINDS, LimitType, Unit
from proxy.refusals import RefusalError
from runtime.setting_names import NAMES
from tests.clients.catalogue import PROVIDERS as CLIENTS_PROVIDERS
from tests.test_architecture import walk
from tests.test_reference import plain, rows

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "policy/endpoints.py"
PROGRAMS = ("policy", "proxy", "control", "launcher", "commands", "trainer", "runtime")
ASSETS = ROOT / "control/api/console/assets"
FORM = ASSETS / "pages/endpoints_form.mjs"
MEMBERS = {"vendor_c_config": ("project_id", "location")}
"""The fields of a target that are objects: the command line has a flag per member."""
BASE_URLS = {name: one.base_url for name, one in PROVIDERS.items() if one.base_url is not None}


def test_no_other_module_spells_the_name_of_a_provider() -> None:
    paths = [path for program in PROGRAMS for path in (ROOT / program).rglob("*.py") if path != TABLE]
    places = [
        f"{path.relative_to(ROOT)}:{node.lineno}: import {node.value} from policy.endpoints"
        for path in paths
        for node in walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in PROVIDERS
    ]
    assert not places, "\n".join(places)


def test_console_spells_no_name_of_a_provider() -> None:
    names = re.compile(rf"\b({'|'.join(PROVIDERS)})\b")
    scripts = ASSETS.rglob("*.mjs")
    assert [path.name for path in scripts if names.search(path.read_text())] == [], "read PROVIDERS of tables.mjs"


@pytest.mark.parametrize("field", sorted({name for one in PROVIDERS.values() for name in one.required | one.optional}))
def test_field_of_a_target_is_known_to_console_api_command_line_and_policy_files(field: str) -> None:
    assert re.search(rf"\b{field}: \[", FORM.read_text()), f"add {field} to controlsOf, or to MEMBERS, of {FORM.name}"
    assert field in GatewayTargetV1.__annotations__
    assert in_file(field) in SCHEMA["$defs"]["target"]["properties"]
    flags = MEMBERS.get(field, (in_file(field),))
    assert set(flags) <= {parameter.name for parameter in create.params}


@pytest.mark.parametrize("provider", BASE_URLS)
def test_setting_of_a_base_url_is_listed_with_its_default(provider: str) -> None:
    base_url = BASE_URLS[provider]
    assert base_url.setting in NAMES
    (default,) = (row[2] for row in rows("settings", "All settings") if plain(row[0]) == base_url.setting)
    assert plain(default) == (base_url.default or "none")


def test_every_provider_has_its_rows_in_the_reference() -> None:
    dialects = {name for row in rows("inference", "Dialects") for name in re.findall("`([A-Z_]+)`", row[0])}
    assert PROVIDERS.keys() <= dialects
    assert PROVIDERS.keys() <= {plain(row[0]) for row in rows("management-api", "Targets")}


def test_clients_are_tried_at_every_provider_in_the_dialects_that_it_speaks() -> None:
    assert {one.provider for one in CLIENTS_PROVIDERS} == PROVIDERS.keys()
    for one in CLIENTS_PROVIDERS:
        if not PROVIDERS[one.provider].may_lack_paths:
            spoken = {dialect.path.removeprefix("/").replace("/", "_") for dialect in one.speaks}
            assert spoken == set(PROVIDERS[one.provider].dialects)


CUSTOMERS_PAGE = "usage"
"""The one page outside the navigation: a group's own."""


def test_every_page_of_the_console_is_in_the_navigation_has_a_module_and_is_documented() -> None:
    pages = [name for name in PAGES if name != CUSTOMERS_PAGE]
    layout = (ASSETS / "layout.mjs").read_text()
    (navigation,) = re.findall(r"export const PAGES = \[(.*?)\];", layout, re.DOTALL)
    assert re.findall(r'name: "(\w+)"', navigation) == pages
    for name in pages:
        module = (ASSETS / f"pages/{name}.mjs").read_text()
        assert re.search(r"^export (?:async )?function draw\(main, ", module, re.MULTILINE), name
    (row,) = (row for row in rows("console", "Pages") if plain(row[0]) == "/console/{page}")
    assert re.findall(r"`(\w+)`", row[1]) == pages


def test_every_page_of_the_console_has_a_journey_of_its_own() -> None:
    of_all_pages = {"test_injections.py", "test_weight.py"}
    folder = ROOT / "tests/journeys/console"
    texts = [path.read_text() for path in folder.glob("test_*.py") if path.name not in of_all_pages]
    assert [name for name in PAGES if not any(re.search(rf'["/]{name}["?/]', text) for text in texts)] == []


ON_REQUEST = ("details", "cost")
"""The members of an event that a list has with `include=details` alone."""


def columns_of_an_event() -> list[str]:
    """The figures and texts that the API lists of an event, as columns of a flat file."""
    members = [name for name in GatewayEventV1.model_fields if name not in ("type", "tokens", *ON_REQUEST)]
    members += GatewayEventV1.model_fields["tokens"].annotation.model_fields  # type: ignore[union-attr]  # a model
    return sorted(map(column_name, members))


def column_name(member: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z0-9])|(?<=h)(?=[A-Z])", "_", member).lower()


def test_event_is_stored_with_every_field() -> None:
    in_other_columns = {"tokens", "ended_at_ms", "details", "is_count"}
    assert set(BillingEvent._fields) - in_other_columns <= set(NewEvent._fields), "add a column"
    figures = [name.removesuffix("_tokens") for name in DETAIL_FIGURES]
    assert (*figures, "service_tier") == Details._fields, "add a column"
    assert set(NewEvent._fields) == set(events.c.keys())


def test_listed_event_is_documented_with_every_field() -> None:
    names = [plain(row[0]) for row in rows("events-and-webhooks", "The event") if len(row) == 3]
    assert sorted(names) == sorted([*GatewayEventV1.model_fields, "requestMetadata"])


def test_event_is_exported_with_every_field_by_command_console_and_forwarder(tmp_path: Path) -> None:
    (head,) = re.findall(r'head: "(timestamp,.*?)\\n"', (ASSETS / "pages/events_export.mjs").read_text())
    assert list(EVENTS.header) == head.split(",")
    assert sorted(head.split(",")) == columns_of_an_event()
    pytest.importorskip("pyarrow")
    assert sorted(ParquetParts(tmp_path, 1).schema().names) == columns_of_an_event()
    details = [column_name(name) for name in GatewayEventDetailsV1.model_fields]
    assert sorted(ParquetParts(tmp_path, 1, details=True).schema().names) == sorted(columns_of_an_event() + details)
    assert sorted(DETAILED_EVENTS.header) == sorted([*columns_of_an_event(), *details, "cost", "currency"])


def test_every_type_and_unit_of_limits_has_a_kind() -> None:
    assert {type for type, _ in KINDS} == set(LimitType)
    assert {unit for _, unit in KINDS} == set(Unit)


def names_in_functions(package: str) -> set[str]:
    """The names that functions of a package read. Tables and bases of classes are outside of functions."""
    modules = [ast.parse(path.read_bytes()) for path in (ROOT / package).rglob("*.py")]
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    functions = [node for module in modules for node in walk(module) if isinstance(node, kinds)]
    return {node.id for one in functions for node in walk(one) if isinstance(node, ast.Name)}


@pytest.mark.parametrize(("package", "base"), [("proxy", RefusalError), ("control", DomainError)])
def test_every_error_with_a_code_is_raised(package: str, base: type[Exception]) -> None:
    names = names_in_functions(package)

    def is_raised(error: type[Exception]) -> bool:
        return error.__name__ in names or any(map(is_raised, error.__subclasses__()))

    errors = [one for one in subclasses(base) if one.__module__.startswith(f"{package}.")]
    assert [one.__name__ for one in errors if not is_raised(one)] == [], "raise it where it is noticed"


def subclasses(base: type[Exception]) -> list[type[Exception]]:
    return [one for direct in base.__subclasses__() for one in (direct, *subclasses(direct))]
