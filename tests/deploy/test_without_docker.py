"""Checks how `make deploy-check` reads Dockerfile and compose.yaml. Running them takes it minutes, and root."""

from pathlib import Path

import pytest

from tests.deploy.without_docker.compose import Service, services
from tests.deploy.without_docker.dockerfile import Instruction, stages
from tests.deploy.without_docker.sandbox import user_of
from tests.deploy.without_docker.stock_images import WITHOUT_A_PACKAGE

ROOT = Path(__file__).resolve().parents[2]
SECRETS = dict.fromkeys(
    (
        *("POSTGRES_PASSWORD", "REDIS_PASSWORD", "GRAFANA_PASSWORD"),
        *("TOLLGATE_INTERNAL_TOKEN", "TOLLGATE_METRICS_TOKEN", "TOLLGATE_SECRET_KEY"),
    ),
    "s3",
)


def of(text: str) -> Service:
    (service,) = services("services:\n  one:\n    image: image:1\n" + text, {"SET": "value", "EMPTY": ""})
    return service


def test_stages_have_their_instructions_without_comments_and_line_ends() -> None:
    text = (
        "ARG BASE=python:3\nFROM ${BASE} AS build\n# why\nRUN one \\\n    && two\nFROM build\nCOPY --from=build /a /b\n"
    )
    first, second = stages(text)
    assert (first.base, first.name, second.base, second.name) == ("python:3", "build", "build", "")
    assert first.instructions == [Instruction("RUN", "one     && two")]
    assert second.instructions[0].words() == ["--from=build", "/a", "/b"]


def test_env_may_name_variables_and_commands_are_json() -> None:
    assert Instruction("ENV", "PATH=/opt/bin:$PATH A=1").pairs({"PATH": "/bin"}) == {"PATH": "/opt/bin:/bin", "A": "1"}
    assert Instruction("CMD", '["up", "--host", "0.0.0.0"]').words() == ["up", "--host", "0.0.0.0"]


def test_our_image_is_built_of_known_instructions_in_two_stages() -> None:
    names = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "RUN", "USER", "VOLUME", "WORKDIR"}
    all_stages = stages((ROOT / "Dockerfile").read_text())
    assert [stage.name for stage in all_stages] == ["build", ""]
    assert {one.name for stage in all_stages for one in stage.instructions} <= names


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("${SET:?say so}", "value"),
        ("${SET:-other}", "value"),
        ("${EMPTY:-other}", "other"),
        ("${UNSET:-}", ""),
        ("$$SET", "$SET"),
        ("a ${SET} b", "a value b"),
    ],
)
def test_variables_are_filled_in_as_compose_does(text: str, read: str) -> None:
    assert of(f'    environment: {{NAME: "{text}"}}\n').environment == {"NAME": read}


def test_missing_variable_without_a_default_is_refused() -> None:
    with pytest.raises(KeyError, match="UNSET"):
        of("    environment: {NAME: '${UNSET:?run deploy/new-secrets}'}\n")


def test_health_checks_run_with_and_without_a_shell() -> None:
    assert of("").health_check == []
    assert of("    healthcheck: {test: [CMD, pg_isready, -q]}\n").health_check == ["pg_isready", "-q"]
    assert of("    healthcheck: {test: [CMD-SHELL, a | b]}\n").health_check == ["sh", "-c", "a | b"]


def test_our_services_start_behind_those_they_need() -> None:
    all_services = services((ROOT / "deploy/compose.yaml").read_text(), SECRETS)
    names = [service.name for service in all_services]
    assert all(names.index(needed) < names.index(one.name) for one in all_services for needed in one.after)
    assert all_services[names.index("control-1")].after == {"postgres": True, "redis": True}
    haproxy = all_services[names.index("haproxy")]
    assert (haproxy.stop_signal, haproxy.stop_within_s, haproxy.open_files) == ("SIGUSR1", 330, 65536)
    assert set(names) >= WITHOUT_A_PACKAGE


def test_users_are_found_by_name_and_by_number(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nredis:x:101:102::/:/bin/false\n")
    assert [user_of(tmp_path, name) for name in ("redis", "101", "10001")] == ["101:102", "101:102", "10001:10001"]
