"""Differences of two scrapes."""

from commands.top.rates import has_restarted, rates_of
from tests.commands.top.scrapes import Calls, sample

BEFORE: Calls = {("g", "a/x", "200"): 100, ("g", "a/x", "429"): 7}


def test_only_what_happened_in_between_counts_per_second() -> None:
    after = {**BEFORE, ("g", "a/x", "200"): 110, ("h", "a/x", "502"): 2, ("h", "a/y", "429"): 4, ("h", "a/y", "529"): 2}
    rates = rates_of([(sample(BEFORE, 10.0), sample(after, 12.0, in_flight=3))])
    assert rates.whole.to_json() == {
        "calls_per_second": 9.0,
        "errors_per_second": 1.0,
        "refused_per_second": 3.0,
        "tokens_per_second": 50.0,
    }
    assert (rates.in_flight, dict(rates.statuses)) == (3, {"200": 5.0, "502": 1.0, "429": 2.0, "529": 1.0})
    report = rates.to_json()
    assert [(group["external_entity_id"], group["calls_per_second"]) for group in report["groups"]] == [
        ("g", 5.0),
        ("h", 4.0),
    ]
    assert [(slug["model_slug"], slug["refused_per_second"]) for slug in report["slugs"]] == [
        ("a/x", 0.0),
        ("a/y", 3.0),
    ]


def test_a_caller_that_left_and_a_bad_request_are_calls_and_nothing_else() -> None:
    whole = rates_of([(sample({}, 0.0), sample({("g", "a/x", "499"): 1, ("g", "a/x", "400"): 1}, 1.0))]).whole
    assert (whole.calls, whole.errors, whole.refused) == (2, 0, 0)


def test_after_a_restart_counters_began_at_0() -> None:
    before = sample(BEFORE, 0.0)
    after = sample({("g", "a/x", "200"): 4, ("g", "a/x", "429"): 8}, 2.0)
    assert has_restarted(before, after)
    assert rates_of([(before, after)]).statuses == {"200": 2.0, "429": 4.0}


def test_a_series_that_was_dropped_and_came_back_is_no_restart() -> None:
    """The series is one of a deleted slug. After a restart the other counters would start at zero again."""
    before = sample({("g", "a/x", "200"): 50, ("g", "a/old", "200"): 9}, 0.0)
    after = sample({("g", "a/x", "200"): 70, ("g", "a/old", "200"): 1}, 1.0)
    assert not has_restarted(before, after)
    rates = rates_of([(before, after)])
    assert {slug: traffic.calls for (_, slug), traffic in rates.slugs.items()} == {"a/x": 20.0, "a/old": 1.0}


def test_proxies_are_added_each_over_its_own_time() -> None:
    one = (sample({}, 0.0), sample({("g", "a/x", "200"): 10}, 1.0))
    two = (sample({}, 5.0), sample({("g", "a/x", "200"): 10}, 10.0))
    assert rates_of([one, two, (None, sample(BEFORE, 1.0))]).whole.calls == 12
