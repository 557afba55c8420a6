"""`tollgate top` with scripted looks: what it shows of proxies that restart, are away, or whose labels are hostile."""

import json
from collections.abc import Sequence

import pytest
from click.testing import CliRunner

from commands.edges.metrics_reader import sample_of
from commands.errors import AwayError, ManagementError, RefusedError
from commands.records.metrics_sample import Sample
from commands.top.command import follow
from commands.top.proxies import Follower, View
from commands.top.screen import in_place, json_line, log_line, screen
from control.operator.cli import tollgate
from tests.commands.top.scrapes import Calls, sample

AWAY = AwayError("http://b/metrics does not answer (gone)")
SOME: Calls = {("g", "a/x", "200"): 4}


def follower(**answers: Sequence[Sample | ManagementError]) -> Follower:
    """Return a follower of proxies by name; each gives its answers in order."""
    samples = {name: iter(answers_of_proxy) for name, answers_of_proxy in answers.items()}

    async def read(url: str) -> Sample:
        answer = next(samples[url])
        if isinstance(answer, ManagementError):
            raise answer
        return answer

    return Follower([lambda url=name: url for name in answers], read)  # type: ignore[misc]


async def views(following: Follower, count: int) -> list[View]:
    return [await following.look() for _ in range(count)]


async def test_a_proxy_that_is_away_is_shown_and_counts_when_it_is_back() -> None:
    up = [sample(SOME, float(second)) for second in range(4)]
    back = sample({("g", "a/x", "200"): 34}, 3.0)
    _, second, third, fourth = await views(follower(a=up, b=[sample(SOME, 0.0), AWAY, AWAY, back]), 4)
    assert [[proxy.state for proxy in view.proxies] for view in (second, third, fourth)] == [
        ["up", "away"],
        ["up", "away"],
        ["up", "up"],
    ]
    assert "away: http://b/metrics does not answer (gone)" in screen(second, 5)
    assert "away: http://b/metrics" in log_line(third, "T")
    assert (third.rates.whole.calls, fourth.rates.whole.calls) == (0, 10)


async def test_a_proxy_that_restarts_is_shown() -> None:
    _, second = await views(follower(a=[sample(SOME, 0.0), sample({("g", "a/x", "200"): 2}, 2.0)]), 2)
    assert second.proxies[0].state == "restarted"
    assert second.rates.whole.calls == 1
    assert "restarted: a" in screen(second, 5)


async def test_nothing_to_show_ends_the_command() -> None:
    refused = RefusedError("401: no key")
    with pytest.raises(RefusedError, match="401"):
        await follow(follower(a=[refused], b=[AWAY]), lambda view: None, 0, once=True)
    pictures: list[View] = []
    with pytest.raises(ManagementError, match="gone"):
        await follow(follower(a=[sample(SOME, 0.0), AWAY]), pictures.append, 0, once=True)
    assert not pictures
    await follow(follower(a=[sample(SOME, 0.0), sample(SOME, 1.0)], b=[AWAY, AWAY]), pictures.append, 0, once=True)
    assert len(pictures) == 1


async def test_text_from_users_cannot_move_the_cursor() -> None:
    hostile = 'x"\\\n\x1b[2J\x9b2J,}{=#\u202e\u2028'
    _, view = await views(follower(a=[sample({}, 0.0), sample({(hostile, hostile, "200"): 1}, 1.0)]), 2)
    assert [entity for _, entity in view.rates.groups] == [hostile]
    for text in (screen(view, 5), log_line(view, "T"), json_line(view, "T")):
        assert all(character.isprintable() or character == "\n" for character in text)
    assert len(log_line(view, "T").splitlines()) == len(json_line(view, "T").splitlines()) == 1
    assert json.loads(json_line(view, "T"))["groups"][0]["external_entity_id"] == hostile


async def test_screen_fits_the_terminal() -> None:
    calls = {(f"group-{number}" * 20, f"a/{number}", "200"): number + 1 for number in range(50)}
    _, view = await views(follower(a=[sample({}, 0.0), sample(calls, 1.0)]), 2)
    for width, height in ((80, 24), (20, 3), (300, 200)):
        lines = in_place(view, 10, width, height).removeprefix("\x1b[H\x1b[J").splitlines()
        assert len(lines) < height
        assert max(map(len, lines)) < width
    assert "group-49" in lines[4]
    assert len(screen(view, 10).splitlines()) == 2 + 2 * 12


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff\xfe", b"tollgate_inflight_requests{ 1", b"{}"])
def test_other_answers_are_not_metrics(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        sample_of(body, 0.0)


def test_wrong_places_are_refused() -> None:
    run = CliRunner().invoke
    assert run(tollgate, ["top", "--metrics-url", "ftp://x"]).exit_code == 2
    assert run(tollgate, ["top", "--metrics-url", "http://u:p@x"]).exit_code == 2
    away = run(tollgate, ["top", "--data", "/nowhere", "--once"])
    assert (away.exit_code, away.output.count("\n")) == (1, 1)
    assert "--metrics-url" in away.output
