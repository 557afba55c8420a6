"""The OpenAPI document and the page made from it: versions, names, examples, bounds, escaping.

See docs/reference/management-api.md#description.
"""

import json
import re
from typing import Any

import pytest
from pydantic import BaseModel

from control.api.protocol.docs_page import docs_page
from control.api.protocol.openapi import ErrorV1, describe
from control.app import OPERATIONS
from control.edges.telemetry.metrics import Metrics
from policy.endpoints import PROVIDER_NAMES
from tests.control.plane import ControlPlane

Json = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> Json:
    return json.loads(json.dumps(describe(OPERATIONS)))  # type: ignore[no-any-return]  # JSON


def test_the_document_states_openapi_and_api_versions(document: Json) -> None:
    assert document["openapi"] == "3.1.0"
    assert document["info"]["version"] == "1.0.0"


def test_every_schema_ends_in_v1(document: Json) -> None:
    names = document["components"]["schemas"].keys()
    assert {"PaginationResponseV1", "GatewayGroupV1", "GatewayEndpointV1", "ErrorV1", "VendorBTargetV1"} <= names
    assert [name for name in names if not re.fullmatch(r"[A-Z][A-Za-z0-9]*V1", name)] == []


def test_every_schema_reference_resolves(document: Json) -> None:
    names = re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document))
    assert set(names) <= document["components"]["schemas"].keys()


def test_operation_ids_are_unique_snake_case_words(document: Json) -> None:
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids)) == len(OPERATIONS)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", id) for id in ids)


def test_every_operation_shows_its_errors_with_examples(document: Json) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            answers = operation["responses"]
            assert {"200", "401", "403", "429", "503"} <= answers.keys(), (method, path)
            assert "404" in answers or "{" not in path, (method, path)
            assert ("415" in answers) == ("requestBody" in operation), (method, path)
            for status, answer in answers.items():
                if status == "304":
                    assert "content" not in answer
                    continue
                content = answer["content"]["application/json"]
                if status != "200":
                    assert content["schema"] == {"$ref": "#/components/schemas/ErrorV1"}
                    assert content["example"]["message"] == content["example"]["error"]
                    ErrorV1.model_validate(content["example"])


def test_every_deletion_says_so(document: Json) -> None:
    answers = [operation.answer.__name__ for operation in OPERATIONS if operation.method == "DELETE"]
    assert len(answers) > 10
    for name in answers:
        schema = document["components"]["schemas"][name]
        assert schema["properties"]["deleted"]["const"] is True, name
        assert "deleted" in schema["required"], name


def test_request_schemas_forbid_unknown_fields_and_bound_numbers(document: Json) -> None:
    schemas = document["components"]["schemas"]
    for operation in OPERATIONS:
        if operation.body is not None:
            assert schemas[operation.body.__name__]["additionalProperties"] is False
    threshold = schemas["RateLimitV1"]["properties"]["threshold"]
    assert (threshold["minimum"], threshold["maximum"]) == (0, 2**53 - 1)


def test_every_optional_request_field_may_be_null(document: Json) -> None:
    """Clients generated for some languages send null for fields that were not set."""
    schemas = document["components"]["schemas"]
    request_schemas = {operation.body.__name__ for operation in OPERATIONS if operation.body is not None}
    while (
        more := set(re.findall(r"schemas/(\w+)", json.dumps([schemas[name] for name in request_schemas])))
        - request_schemas
    ):
        request_schemas |= more
    for name in request_schemas:
        fields = schemas[name].get("properties", {})
        required = schemas[name].get("required", [])
        for field in fields.keys() - set(required):
            choices = fields[field].get("anyOf", [fields[field]])
            assert {"type": "null"} in [{"type": choice.get("type")} for choice in choices], (name, field)


def test_the_provider_selects_the_target_schema(document: Json) -> None:
    items = document["components"]["schemas"]["CreateGatewayEndpointRequestV1"]["properties"]["targets"]["items"]
    assert items["discriminator"]["propertyName"] == "provider"
    assert len(items["oneOf"]) == 7, "one for each provider, and one for the alias with another name of a field"
    assert items["discriminator"]["mapping"].keys() == PROVIDER_NAMES.keys()


async def test_the_document_needs_no_credentials(sqlite_plane: ControlPlane, document: Json) -> None:
    async with sqlite_plane.client.get("/v1/openapi.json") as answer:
        assert await answer.json() == document


async def test_the_page_loads_nothing_from_other_hosts(sqlite_plane: ControlPlane) -> None:
    async with sqlite_plane.client.get("/docs") as answer:
        page = await answer.text()
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    links = set(re.findall(r"""(?:src|href)=["']?([^"'> ]*)""", page))
    assert {link for link in links if not link.startswith("#")} == {"/v1/openapi.json"}
    assert "<script" not in page
    for operation in OPERATIONS:
        assert operation.path.replace("'", "&#x27;") in page


def test_the_page_escapes_html() -> None:
    evil = "<img src=x>"
    operation = {"summary": evil, "tags": [evil], "parameters": [], "responses": {}}
    document = {
        "info": {"title": evil, "version": evil, "description": evil},
        "paths": {evil: {"get": operation}},
        "components": {"schemas": {"XV1": {"description": evil, "properties": {"a": {"type": evil}}}}},
    }
    assert evil not in docs_page(document)


def test_validation_errors_hide_the_input() -> None:
    """The text of a validation error must not contain the input, which may be a secret."""
    for operation in OPERATIONS:
        for model in (operation.body, operation.query):
            assert model is None or (issubclass(model, BaseModel) and model.model_config.get("hide_input_in_errors"))


def test_requests_are_counted_by_method_route_and_status() -> None:
    metrics = Metrics()
    metrics.answered("GET", "/v1/models", 200, 0.01)
    text = metrics.text()[0].decode()
    labels = 'method="GET",route="/v1/models",status_code="200"'
    assert f"tollgate_control_requests_total{{{labels}}} 1.0" in text
