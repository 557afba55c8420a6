"""The inference document compared with the proxy: its refusals, paths, methods, header fields; and where it is served.

See docs/reference/inference.md#description.
"""

import json
import re
from typing import Any

import pytest

from control.api.inference_document import refusals as documented
from control.api.inference_document.document import CALLS, PATH, describe_inference
from control.api.inference_document.fields import DIRECT_FIELDS, SENT_FIELDS, SLUG_FIELDS
from control.api.inference_document.platform_calls import PLACES, SYNC_METHODS
from control.api.inference_document.refusals import FLAT, LOGGED_ONLY, CallKind
from proxy import refusals
from proxy.async_requests.requests import PRIORITIES
from proxy.async_requests.states import Status
from proxy.http_rules import cors
from proxy.http_rules.headers import (
    DIRECT_FORWARDED_FIELDS,
    DIRECT_RETURNED_FIELDS,
    FORWARDED_FIELDS,
    RETURNED_FIELDS,
    rate_limit_names,
)
from proxy.http_rules.model_paths import ASYNC_ACTIONS, METHODS, Action, model_path
from proxy.stages import receive
from tests.control.plane import ControlPlane
from tests.inference_document import Answer, event_data, inference_document

Json = dict[str, Any]
NOT_IN_OPENAPI = {"accept", "content-type", "user-agent"}
"""Fields that OpenAPI has elsewhere, or that every client sets by itself."""


@pytest.fixture(scope="module")
def document() -> Json:
    return inference_document().document


def operations(document: Json) -> list[tuple[str, str, Json]]:
    return [
        (method.upper(), path, one) for path, methods in document["paths"].items() for method, one in methods.items()
    ]


# --- the proxy's own tables -----------------------------------------------------------------------------------------


def test_every_refusal_of_the_proxy_is_documented_with_its_message(document: Json) -> None:
    rows = {(row.status, row.code, row.message) for row in (*refusals.TABLE.values(), refusals.BUG)}
    cases = {(case.status, case.code, None if case.is_example else case.message) for case in documented.CASES}
    [of_leavers] = [row for row in rows if row[0] == 499]
    assert of_leavers[1] == LOGGED_ONLY
    assert f"499 `{LOGGED_ONLY}`" in document["info"]["description"]
    own_messages = {(404, "MODEL_NOT_FOUND", None)}  # of slugs; that of models is documented
    assert rows - {of_leavers} - own_messages == cases


@pytest.mark.parametrize("row", [*refusals.TABLE.values(), refusals.BUG], ids=lambda row: row.cause)
def test_every_refusal_validates_where_it_can_occur(row: refusals.Refusal) -> None:
    if row.status == 499:
        return  # nobody is answered
    text = json.dumps({"error": row.message or "text"} | ({"error_code": row.code} if row.code else {})).encode()
    kinds = [case.kinds for case in documented.CASES if (case.status, case.code) == (row.status, row.code)]
    assert kinds
    checks = inference_document()
    for kind in {kind for each in kinds for kind in each}:
        response = checks.document["components"]["responses"][f"{kind.value}{row.status}"]
        media = response["content"]["application/json"]
        assert not list(checks.json_problems(media["schema"], text))
        assert (row.code or "error") in media["examples"]


def test_examples_of_errors_validate(document: Json) -> None:
    for name, response in document["components"]["responses"].items():
        media = response["content"]["application/json"]
        for example in media.get("examples", {}).values():
            assert not list(
                inference_document().json_problems({"$ref": f"#/components/schemas/{FLAT}"}, dumped(example))
            ), name
        assert media["schema"]["$ref"].rpartition("/")[2] in (documented.ANY_ERROR, FLAT)


def dumped(example: Json) -> bytes:
    return json.dumps(example["value"]).encode()


def test_examples_of_bodies_validate(document: Json) -> None:
    examples = 0
    for _, _, operation in operations(document):
        contents = [operation["requestBody"]["content"]] if "requestBody" in operation else []
        contents += [response["content"] for response in operation["responses"].values() if "content" in response]
        for media in (media for content in contents for media in content.values() if "example" in media):
            schema = media["schema"].get("contentSchema")
            texts = (
                [data.encode() for data in events(media["example"])]
                if schema
                else [json.dumps(media["example"]).encode()]
            )
            examples += 1
            for text in texts:
                assert not list(inference_document().json_problems(schema or media["schema"], text))
    assert examples > 20


def events(example: str) -> list[str]:
    return [data for data in event_data(example.encode()) if data != "[DONE]"]


# --- paths and methods ----------------------------------------------------------------------------------------------


def test_paths_for_slugs_are_those_that_the_proxy_serves() -> None:
    paths = {call.path for call in CALLS if call.kind in (CallKind.SLUG, CallKind.LISTING)}
    assert paths == {*receive._PURPOSES, f"{receive.MODEL_PREFIX}{{slug}}"}
    assert {call.method for call in CALLS if call.kind is CallKind.SLUG} == {"POST"}


def test_every_path_of_platform_models_is_parsed_as_what_the_document_says() -> None:
    methods: dict[Action, set[str]] = {}
    for call in CALLS:
        if call.kind in (CallKind.SLUG, CallKind.LISTING):
            continue
        parsed = model_path(re.sub(r"{(\w+)}", "x", call.path), None)
        assert (parsed.action in ASYNC_ACTIONS) == (call.kind in (CallKind.SUBMISSION, CallKind.LOOK_UP))
        methods.setdefault(parsed.action, set()).add(call.method)
    assert methods.pop(Action.SYNC) == set(SYNC_METHODS) == set(METHODS[Action.SYNC])
    assert methods == {action: set(METHODS[action]) - {"HEAD"} for action in Action if action is not Action.SYNC}
    assert len({place.path for place in PLACES}) == 4


# --- header fields --------------------------------------------------------------------------------------------------


def test_fields_that_go_upstream_are_the_proxys() -> None:
    own = {"x-request-id", "x-request-metadata"}
    assert {*SENT_FIELDS, *SLUG_FIELDS} - own == set(FORWARDED_FIELDS) - NOT_IN_OPENAPI
    assert {*SENT_FIELDS, *DIRECT_FIELDS} - own == set(DIRECT_FORWARDED_FIELDS) - NOT_IN_OPENAPI


def test_fields_that_come_back_are_the_proxys() -> None:
    slug = set(CallKind.SLUG.answer_fields)
    direct = set(CallKind.DIRECT.answer_fields)
    assert RETURNED_FIELDS - {"content-type"} <= slug
    assert DIRECT_RETURNED_FIELDS - {"content-type"} <= direct
    exposed = {name.strip() for name in cors._EXPOSED.split(",")}
    assert exposed <= slug
    lines = "".join(line for kind in ("requests", "tokens") for line in rate_limit_names(kind, 1))
    assert set(re.findall(r"x-ratelimit-[a-z-]+", lines)) <= slug


def test_states_of_asynchronous_requests_are_the_proxys(document: Json) -> None:
    schema = document["components"]["schemas"]["AsyncRequestV1"]
    assert set(schema["properties"]["status"]["enum"]) == {status.value for status in Status}
    assert list(PRIORITIES) == [0, 1, 2]


# --- the document as such -------------------------------------------------------------------------------------------


def test_operations_have_short_ids_descriptions_and_a_declared_tag(document: Json) -> None:
    names = [tag["name"] for tag in document["tags"]]
    assert all(tag["description"] for tag in document["tags"])
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids)) == len(CALLS)
    assert max(map(len, ids)) <= 40
    tags = {tag for _, _, operation in operations(document) for tag in operation["tags"]}
    assert tags == set(names)
    assert all(operation["description"] and operation["summary"] for _, _, operation in operations(document))


def test_document_is_self_contained_and_has_no_null_defaults(document: Json) -> None:
    text = json.dumps(document)
    assert '"default": null' not in text
    for reference in set(re.findall(r'"\$ref": "([^"]+)"', text)):
        node: Any = document
        assert reference.startswith("#/")
        for name in reference.removeprefix("#/").split("/"):
            node = node[name]


def test_path_parameters_are_those_of_the_path(document: Json) -> None:
    for _, path, operation in operations(document):
        names = [one["name"] for one in operation["parameters"] if one.get("in") == "path"]
        assert sorted(names) == sorted(re.findall(r"{(\w+)}", path))


def test_objects_let_further_members_through_but_those_that_the_gateway_refuses(document: Json) -> None:
    closed = [
        name
        for name, schema in document["components"]["schemas"].items()
        if schema.get("type") == "object" and schema["additionalProperties"] is not True
    ]
    assert closed == ["SubmissionV1"]


def test_server_is_the_proxy_or_a_variable() -> None:
    assert describe_inference("https://inference.example.com")["servers"][0]["url"] == "https://inference.example.com"
    [server] = describe_inference(None)["servers"]
    assert server["url"] == "{inference_url}"
    assert server["variables"]["inference_url"]["default"] == "http://127.0.0.1:8080"


async def test_document_is_served_without_credentials_and_linked_from_the_page(sqlite_plane: ControlPlane) -> None:
    async with sqlite_plane.client.get(PATH) as answer:
        assert (answer.status, answer.content_type) == (200, "application/json")
        assert await answer.json() == describe_inference(None)
    async with sqlite_plane.client.get("/docs") as page:
        assert f"href={PATH}" in await page.text()


def test_check_reports_what_is_wrong() -> None:
    """The checks that other tests rely on see a wrong status, field, label, body and event."""
    checks = inference_document()
    path = "/v1/chat/completions"
    fields = [("x-request-id", "r"), ("x-content-type-options", "nosniff"), ("content-type", "application/json")]
    chunk = b'data: {"object": 1}\n\n'
    labelled = [*fields[:2], ("content-type", "text/event-stream")]
    for status, answered_fields, body in (
        (299, fields, b"{}"),
        (200, fields, b'{"choices": 1}'),
        (200, fields, b"{"),
        (200, fields[1:], b"{}"),
        (200, [*fields, ("set-cookie", "a")], b"{}"),
        (200, [*fields[:2], ("content-type", "text/html")], b"{}"),
        (200, labelled, chunk),
        (404, fields, b'{"detail": "x"}'),
        (401, fields, b'{"error": 5}'),
    ):
        assert list(checks.problems(Answer("POST", path, status, answered_fields, body))), (
            status,
            answered_fields,
            body,
        )
