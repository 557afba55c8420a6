"""A path and a host name one model; part of the path goes to its replica, and no more."""

import random
from collections.abc import Iterator
from urllib.parse import unquote

import pytest

from policy.deployments import Where
from proxy.http_rules.model_paths import Action, ModelPath, leaves, model_of_host, model_path, parse_host_suffix
from proxy.refusals import MalformedRequestError, NoSuchPathError, UpgradeError

MODEL = "mdl_01JABCDEFGHJKMNPQRSTVWXYZ0"
SUFFIX = "models.example.com"
NAMES = {
    "production": Where("production"),
    "development": Where("development"),
    "environments/staging": Where("staging"),
    "environments/predict": Where("predict"),
    "deployment/dep_1": Where(None, "dep_1"),
}


@pytest.mark.parametrize(("name", "where"), NAMES.items(), ids=NAMES)
def test_all_forms_of_where_are_understood_in_paths_and_on_hosts(name: str, where: Where) -> None:
    parsed_path = ModelPath(MODEL, where, Action.PREDICT, "/predict?a=1&b")
    assert model_path(f"/models/{MODEL}/{name}/predict?a=1&b", None) == parsed_path
    assert model_path(f"/{name}/predict?a=1&b", MODEL) == parsed_path
    assert model_path(f"/{name}/wake?x", MODEL) == ModelPath(MODEL, where, Action.WAKE, "")


@pytest.mark.parametrize(("name", "where"), NAMES.items(), ids=NAMES)
@pytest.mark.parametrize("action", [Action.ASYNC_PREDICT, Action.ASYNC_QUEUE_STATUS])
def test_asynchronous_paths_have_the_same_forms(name: str, where: Where, action: Action) -> None:
    parsed_path = ModelPath(MODEL, where, action, "")
    assert model_path(f"/models/{MODEL}/{name}/{action.value}?a=1", None) == parsed_path
    assert model_path(f"/{name}/{action.value}", MODEL) == parsed_path


@pytest.mark.parametrize("id", ["r1", "..", "%2e%2e", "a%2Fb", "x" * 8000, "production", "*"])
def test_asynchronous_request_is_named_with_or_without_its_model(id: str) -> None:
    for path, host_model, model_id in (
        (f"/async_request/{id}", None, None),
        (f"/models/m1/async_request/{id}?a=/b", None, "m1"),
        (f"/async_request/{id}?a", MODEL, MODEL),
        (f"/async_request/{id}", "", ""),
    ):
        parsed_path = model_path(path, host_model)
        assert parsed_path == ModelPath(model_id, Where(), Action.ASYNC_REQUEST, "", id)


UNCHANGED = (
    *(
        "/v1/models",
        "/v1/models/meta%2Fllama",
        "/",
        "//x",
        "/a/./b",
        "/a..b/...",
        "/v1/%E2%82%AC",
        "/%25",
        "/100%25%20",
    ),
    *("/websocket", "/v1/chat/completions?q=..%2f..&x=%0d%0a", "/a;b=c", "/a?", "/a??b?", "/x?/../y"),
)


@pytest.mark.parametrize("below", UNCHANGED)
def test_path_below_sync_goes_on_as_it_was_written(below: str) -> None:
    path = model_path(f"/models/m1/production/sync{below}", None)
    assert (path.action, path.target) == (Action.SYNC, below)


LEAVING = (
    *("/..", "/../v1", "/a/../../b", "/a/..", "/%2e%2e/b", "/.%2E/b", "/%2e./b", "/a%2f..%2fb", "/..%2fb"),
    *("/..\\b", "/a\\..\\b", "/..%5cb", "/..;x/b", "/..;/b", "/%2e%2e;x=1/b", "/..%00/b", "/..%20/b", "/%09../b"),
    *("/%252e%252e/b", "/%25252e%25252e/b", "/..%252fb", "/%c0%ae%c0%ae/b", "/%ff", "/%" + "25" * 9 + "2e./b"),
)


@pytest.mark.parametrize("below", LEAVING)
def test_path_that_could_leave_sync_is_refused(below: str) -> None:
    with pytest.raises(MalformedRequestError, match="segment"):
        model_path(f"/models/m1/production/sync{below}", None)


def readings(path: str) -> Iterator[list[str]]:
    """The segments of `path` as servers read it: decoded up to three times, with either slash, cut at `;` or not."""
    for _ in range(4):
        for text in (path, path.replace("\\", "/")):
            segments = text.split("/")
            yield segments
            yield [segment.partition(";")[0] for segment in segments]
        path = unquote(path)


def test_no_accepted_path_leaves_by_any_reading() -> None:
    rng = random.Random(14)
    tokens = ("..", ".", "%2e", "%2E", "/", "%2f", "\\", "%5c", ";", "%3b", "a", "%25", "%252e", "%252f", "v1")
    accepted = 0
    for _ in range(20_000):
        below = "/" + "".join(rng.choices(tokens, k=rng.randint(1, 7)))
        try:
            target = model_path(f"/models/m1/production/sync{below}", None).target
        except MalformedRequestError:
            continue
        accepted += 1
        assert target == below
        assert not any(".." in segments for segments in readings(below)), below
    assert 5_000 < accepted < 19_000


def test_search_for_parents_takes_linear_time() -> None:
    assert not leaves("/" + "%20" * 2700 + "/.")
    assert leaves("/%" + "25" * 4000)


@pytest.mark.parametrize("below", ["/%", "/%2", "/%zz", "/a?%", "/a?b=%g0", "/\x80", "/a?\xe9", "/a#b", "/a?b#c"])
def test_target_that_cannot_be_sent_is_refused(below: str) -> None:
    with pytest.raises(MalformedRequestError, match="percent-encoded"):
        model_path(f"/models/m1/production/sync{below}", None)


NOWHERE = (
    *("/models/", "/models/m1", "/models/m1/", "/models/m1/production", "/models/m1/production/", "/models//predict"),
    *("/models/m1/predict", "/models/m1/production/predict/", "/models/m1/production//predict"),
    *("/models/m1/production/sync", "/models/m1/production/synced/x", "/models/m1/Production/predict"),
    *("/models/m1/production/%70redict", "/models/m1/p%72oduction/predict", "/models/m1/production/sync%2fx"),
    *("/models/m1/environments/predict", "/models/m1/environments//predict", "/models/m1/deployments/d/predict"),
    *("/models/m1/production/async_predict/", "/models/m1/production/async_predict/x", "/models/m1/async_predict"),
    *("/models/m1/production/async%5fpredict", "/models/m1/production/async_queue_status/", "/models/m1/async_request"),
    *("/models/m1/async_request/", "/models/m1/async_request/r1/", "/models/m1/async_request/r1/x"),
    *("/models/m1/production/async_request/r1", "/models//async_request/r1", "/models/async_request/r1"),
    *("/async_request/", "/async_request/r1/", "/async_request//r1", "//async_request/r1", "/Async_request/r1"),
    *("/models/m1/environments/a/b/predict", "/models//production/predict", "//models/m1/production/predict"),
)


@pytest.mark.parametrize("path", NOWHERE)
def test_other_paths_name_nothing(path: str) -> None:
    with pytest.raises(NoSuchPathError):
        model_path(path, None)


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/models/m1/production/predict", "/", "*", "/models/m1/async_request/r1", "/wake"]
)
def test_only_the_bare_forms_are_served_on_a_models_host(path: str) -> None:
    with pytest.raises(NoSuchPathError):
        model_path(path, MODEL)


def test_websocket_path_is_told_apart() -> None:
    with pytest.raises(UpgradeError):
        model_path("/models/m1/environments/x/websocket?a", None)


HOSTS: dict[str | None, list[str | None]] = {
    MODEL: [
        f"model-{MODEL}.{SUFFIX}",
        f"model-{MODEL}.{SUFFIX}".lower(),
        f"MODEL-{MODEL}.{SUFFIX}".upper().replace("_", "-"),
        f"model-mdl-01jabcdefghjkmnpqrstvwxyz0.{SUFFIX}:8080",
        f"model-mdl-01jabcdefghjkmnpqrstvwxyz0.{SUFFIX}.:",
    ],
    "": [f"model-.{SUFFIX}", f"model-mdl-1.{SUFFIX}", f"model-dep-01jabcdefghjkmnpqrstvwxyz0.{SUFFIX}"],
    None: [
        *(None, "", "us", SUFFIX, f"api.{SUFFIX}", f"{SUFFIX}:80", "[::1]:8080", f"model-mdl-1.x.{SUFFIX}"),
        *(f"model-mdl-1.{SUFFIX}.evil.test", f"model-mdl-1x{SUFFIX}", "model-mdl-1", f"a@model-mdl-1.{SUFFIX}"),
        *(f"model-mdl-1.{SUFFIX}:80x", f"model-mdl-1.{SUFFIX}/x", f"xmodel-mdl-1.{SUFFIX}"),
    ],
}


@pytest.mark.parametrize(("host", "model"), [(host, model) for model, hosts in HOSTS.items() for host in hosts])
def test_host_names_a_model_without_regard_to_case_and_port(host: str | None, model: str | None) -> None:
    assert model_of_host(host, SUFFIX) == model


def test_host_suffix_is_a_host_name() -> None:
    assert parse_host_suffix(" Models.Example.com ") == SUFFIX
    for wrong in ("", ".example.com", "example.com.", "a b", "a_b.com", "*.example.com", "https://a", "a:80", "-a"):
        with pytest.raises(ValueError, match="host name"):
            parse_host_suffix(wrong)
