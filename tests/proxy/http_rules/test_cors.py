"""Cross-origin requests: off by default, and allowed to no page but those that the operator names."""

from dataclasses import replace

import pytest

from proxy.http_rules.cors import CorsRules, parse_cors_origins
from proxy.pipeline import Pipeline
from tests.fakes.path import PathRig
from tests.fakes.upstream_client import answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing, asking

PAGE = "https://app.example.com"
PREFLIGHT = {"authorization": None, "content_type": None, "access_control_request_method": "POST"}


@pytest.fixture
def rig() -> PathRig:
    return PathRig()


def allowing(rig: PathRig, origins: str) -> Pipeline:
    return Pipeline(replace(rig.parts(), cors=parse_cors_origins(origins)))


async def serve(pipeline: Pipeline, incoming: FakeIncoming) -> FakeOutgoing:
    outgoing = FakeOutgoing()
    await pipeline.handle(incoming, outgoing)
    return outgoing


def preflight(origin: str, fields: str | None = None) -> FakeIncoming:
    return FakeIncoming("/v1/messages", "OPTIONS", origin=origin, access_control_request_headers=fields, **PREFLIGHT)


def from_page(origin: str, **headers: str | None) -> FakeIncoming:
    incoming = asking()
    incoming.fields += [("origin", origin), *((name, value) for name, value in headers.items() if value)]
    return incoming


def cors_fields(outgoing: FakeOutgoing) -> dict[str, str]:
    return {name: value for name, value in outgoing.headers if name.startswith("access-control") or name == "vary"}


async def test_without_the_setting_no_origin_is_told_anything(rig: PathRig) -> None:
    rig.upstream.will(answer(b"{}"))
    assert not cors_fields(await rig.serve(from_page(PAGE)))
    refusal = await rig.serve(preflight(PAGE))
    assert (refusal.status, refusal.json) == (401, {"error": "Unauthorized"})
    assert not cors_fields(refusal)


@pytest.mark.parametrize("origins", [PAGE, f"https://other.example, {PAGE}", "*"])
async def test_preflight_is_answered_without_a_credential(rig: PathRig, origins: str) -> None:
    outgoing = await serve(allowing(rig, origins), preflight(PAGE, "authorization,x-stainless-lang"))
    assert (outgoing.status, outgoing.body) == (204, b"")
    assert outgoing.header("access-control-allow-origin") == ("*" if origins == "*" else PAGE)
    assert outgoing.header("access-control-allow-methods") == "GET, HEAD, POST"
    assert outgoing.header("access-control-allow-headers") == "authorization,x-stainless-lang"
    assert outgoing.header("access-control-max-age") == "7200"
    assert outgoing.header("access-control-allow-credentials") is None
    rig.check_settled()


async def test_asked_field_names_that_are_no_names_are_not_repeated(rig: PathRig) -> None:
    outgoing = await serve(allowing(rig, PAGE), preflight(PAGE, "a: b"))
    assert outgoing.header("access-control-allow-headers") == "authorization, x-api-key, content-type"


async def test_other_origin_is_refused_and_caches_are_told(rig: PathRig) -> None:
    pipeline = allowing(rig, PAGE)
    for origin in ("https://evil.example", "null", f"{PAGE}.evil.example", PAGE.upper()):
        assert (await serve(pipeline, preflight(origin))).status == 401
        rig.upstream.will(answer(b"{}"))
        outgoing = await serve(pipeline, from_page(origin))
        assert (outgoing.status, cors_fields(outgoing)) == (200, {"vary": "origin"})


async def test_page_reads_answers_and_errors_and_their_fields(rig: PathRig) -> None:
    pipeline = allowing(rig, PAGE)
    rig.upstream.will(answer(b"{}"))
    answered = await serve(pipeline, from_page(PAGE))
    refusal = await serve(pipeline, FakeIncoming("/v1/nothing", authorization=None, origin=PAGE))
    assert (answered.status, refusal.status) == (200, 401)
    for outgoing in (answered, refusal):
        assert outgoing.header("access-control-allow-origin") == PAGE
        assert outgoing.header("vary") == "origin"
        exposed = (outgoing.header("access-control-expose-headers") or "").split(", ")
        assert {"x-request-id", "retry-after", "x-ratelimit-remaining-requests", "x-ratelimit-reset-tokens"} < set(
            exposed
        )


async def test_preflight_of_a_direct_call_allows_its_methods(rig: PathRig) -> None:
    incoming = preflight(PAGE)
    incoming.request_target = "/models/m1/production/sync/x"
    outgoing = await serve(allowing(rig, PAGE), incoming)
    assert outgoing.header("access-control-allow-methods") == "GET, HEAD, POST, PUT, PATCH, DELETE"


async def test_options_that_is_no_preflight_is_a_request_like_any_other(rig: PathRig) -> None:
    outgoing = await serve(allowing(rig, "*"), FakeIncoming("/v1/messages", "OPTIONS", origin=PAGE))
    assert (outgoing.status, outgoing.header("allow")) == (405, "POST")


def test_origins_are_parsed() -> None:
    assert parse_cors_origins("") == CorsRules()
    assert parse_cors_origins(f"{PAGE}, http://localhost:5173,http://[::1]:80").origins == {
        PAGE,
        "http://localhost:5173",
        "http://[::1]:80",
    }
    for wrong in (
        f"{PAGE}/",
        "app.example.com",
        "null",
        "https://*.example.com",
        "https://A.example",
        f"{PAGE}\r\nx: y",
    ):
        with pytest.raises(ValueError, match="expected `\\*`, or comma-separated origins"):
            parse_cors_origins(wrong)
