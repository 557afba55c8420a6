"""The replica's command, environment and health check, and how its end is described."""

import pytest

from launcher.edges.process_guard import groups_left
from launcher.edges.replica_process import environment_for
from launcher.exits import how_it_ended
from launcher.health_check import HealthCheck
from launcher.options import Options, argv_for
from launcher.replica_runner import next_progress_s


def test_port_replaces_every_placeholder() -> None:
    assert argv_for(["server", "--port={port}", "{port}:{port}", "{host}"], 81) == [
        "server",
        "--port=81",
        "81:81",
        "{host}",
    ]


def test_replica_gets_its_port_and_none_of_our_settings() -> None:
    ours = {"PATH": "/bin", "TOLLGATE_API_KEY": "tg_x.y", "TOLLGATE_SECRET_KEY": "z", "PYTHONUNBUFFERED": "0"}
    assert environment_for(ours, 81) == {"PATH": "/bin", "PORT": "81", "PYTHONUNBUFFERED": "0"}


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "ended with status 0"),
        (7, "ended with status 7"),
        (-9, "was killed (signal 9); possibly out of memory"),
        (-11, "was killed (signal 11, SIGSEGV)"),
        (-99, "was killed (signal 99, unknown)"),
    ],
)
def test_end_of_a_process_in_words(status: int, text: str) -> None:
    assert how_it_ended(status) == text


@pytest.mark.parametrize(
    ("configured", "path", "expected"),
    [
        (None, None, None),
        (None, "/up", HealthCheck("/up")),
        ({"path": "/a", "interval_s": 1}, None, HealthCheck("/a", interval_s=1)),
        ({"path": "/a", "interval_s": 1}, "/b", HealthCheck("/b", interval_s=1)),
        ({"path": "/a", "later_member": 1}, None, HealthCheck("/a")),
    ],
)
def test_health_path_of_the_command_line_replaces_only_the_path(
    configured: dict[str, object] | None, path: str | None, expected: HealthCheck | None
) -> None:
    assert HealthCheck.of(configured, path) == expected


def test_progress_is_told_less_and_less_often() -> None:
    last_s = 0.0
    times = []
    for _ in range(6):
        times.append(last_s := next_progress_s(last_s))
    assert times == [5, 15, 30, 60, 120, 180]


def test_key_and_command_are_in_no_representation() -> None:
    text = repr(Options("http://x", "tg_key.secret", "m", "d", ("server", "--token", "hf_secret")))
    assert "secret" not in text


def test_guard_kills_groups_that_were_not_forgotten() -> None:
    assert groups_left(["+12\n", "+13\n", "-12\n", "+14\n", "+15"]) == {13, 14}
