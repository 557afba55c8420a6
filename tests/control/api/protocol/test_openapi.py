"""The OpenAPI document and the page made from it: versions, names, examples, bounds, escaping.

See docs/reference/management-api.md#description.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from control.api.description.names import names_by_route
from control.api.protocol.docs_page import docs_page
from control.api.protocol.openapi import ErrorV1, describe
from control.api.protocol.schemas import ResponseV1
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


def test_operation_ids_are_unique_short_verbs_and_nouns(document: Json) -> None:
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids)) == len({id.lower() for id in ids}) == len(OPERATIONS)
    assert [id for id in ids if not re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", id) or len(id) > 40] == []


def test_every_operation_has_a_declared_tag_and_a_description_of_its_own(document: Json) -> None:
    declared = [tag["name"] for tag in document["tags"]]
    assert all(tag["description"] for tag in document["tags"])
    tags = set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            (tag,) = operation["tags"]
            tags.add(tag)
            assert re.search(r"[.?]$", operation["description"]), (method, path)
            assert operation["description"].rstrip(".") != operation["summary"], (method, path)
    assert tags == set(declared)
    assert len(declared) == len(tags)


def test_the_names_are_those_of_operations_that_exist() -> None:
    assert names_by_route().keys() == {f"{one.method} {one.path}" for one in OPERATIONS}


def nodes(value: Any) -> Iterator[Json]:
    """Every object of the document, whole."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes(item)


def test_no_body_has_a_default_which_some_generators_take_for_required(document: Json) -> None:
    schemas = document["components"]["schemas"]
    assert [one for one in nodes(schemas) if not isinstance(one.get("default", {}), dict)] == []
    assert [one for one in nodes(document) if one.get("default", "") is None] == []


def test_a_default_of_a_body_is_told_in_words(document: Json) -> None:
    fields = document["components"]["schemas"]["CreateDeploymentRequestV1"]["properties"]
    assert "Default: `100`." in fields["max_queued"]["description"]


def test_numbers_have_formats_and_nothing_but_schemas_names_types(document: Json) -> None:
    schemas = list(nodes(document["components"]["schemas"]))
    assert [one for one in schemas if one.get("type") in ("integer", "number") and "format" not in one] == []
    assert [one for one in schemas if isinstance(one.get("title"), str)] == []
    threshold = document["components"]["schemas"]["RateLimitV1"]["properties"]["threshold"]
    assert threshold["format"] == "int64"


def test_members_that_answers_always_have_are_required(document: Json) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["PaginationResponseV1"]["required"] == ["has_more", "cursor"]
    models = {subclass for subclass in subclasses(ResponseV1) if subclass.__name__ in schemas}
    assert len(models) > 100
    for model in models:
        may_be_absent = {name for name, field in model.model_fields.items() if field.exclude_if is not None}
        schema = schemas[model.__name__]
        assert set(schema["properties"]) - set(schema.get("required", [])) == may_be_absent, model


def subclasses(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for subclass in model.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


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
    assert {link for link in links if not link.startswith("#")} == {"/v1/openapi.json", "/v1/openapi-inference.json"}
    assert "<script" not in page
    for operation in OPERATIONS:
        assert operation.path.replace("'", "&#x27;") in page


def test_the_page_escapes_html() -> None:
    evil = "<img src=x>"
    content = {"application/json": {"schema": {"$ref": "x/XV1"}, "example": {evil: evil}}}
    operation = {"summary": evil, "description": evil, "tags": [evil], "parameters": [], "responses": {}}
    operation["requestBody"] = {"content": content}
    document = {
        "info": {"title": evil, "version": evil, "description": evil},
        "tags": [{"name": evil, "description": evil}],
        "paths": {evil: {"get": operation}},
        "webhooks": {evil: {"post": operation}},
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
