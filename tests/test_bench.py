"""The benchmarks: goals are computed from results, busy machines are noticed, failed streams are counted."""

import time
from math import nan

import pytest

from bench import quiet
from bench.figures import BARE, COMPARED_AT, GOVERNED, Cost, Figures, Findings, Measured, Sample
from bench.goals import GOALS, Goal
from bench.load import Load, parse
from bench.programs.processes import BenchError
from bench.soak import Slice, verdicts
from bench.studies.streams import Watch, summary

QUICK = Load(1000, 100.0, 10.0, 20.0)


SLOW = """Running 5s test @ http://127.0.0.1:46049/v1/chat/completions
  1 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   926.57ms  720.64ms   2.49s    84.76%
    Req/Sec    31.33     21.05    90.00     58.33%
  Latency Distribution
     50%  509.23ms
     75%    1.39s\x20
     90%    2.39s\x20
     99%    2.48s\x20
  89 requests in 5.01s, 132.40KB read
Requests/sec:     17.76
Transfer/sec:     26.43KB
"""


def findings(**costs_us: float) -> Findings:
    result = Findings("a machine", ())
    for name, cost_us in costs_us.items():
        result.figures[name] = Figures(name, "1", {COMPARED_AT: [Sample(QUICK, Cost(cost_us))]})
    return result


def rounds(*costs_us: float) -> list[Sample]:
    return [Sample(QUICK, Cost(cost_us)) for cost_us in costs_us]


CPU_BESIDE_ENVOY = Goal(
    2, "CPU", 2, "", lambda books: Measured.ratio(books.of(GOVERNED).cpu_us(), books.of("envoy").cpu_us())
)


def lines(results: Findings) -> list[str]:
    return [goal.line(results) for goal in GOALS]


def test_goal_line_has_limit_measured_value_and_verdict() -> None:
    goal = CPU_BESIDE_ENVOY
    assert goal.line(findings(tollgate_governed=90, envoy=45)) == "2. CPU: goal ≤ 2, measured 2: held"
    assert "measured 2.001: NOT HELD" in goal.line(findings(tollgate_governed=90.05, envoy=45))
    assert goal.line(findings(tollgate_governed=99, envoy=45)) == "2. CPU: goal ≤ 2, measured 2.2: NOT HELD"


def test_missing_peer_is_listed_with_the_reason() -> None:
    results = findings(tollgate_governed=90)
    results.missing["litellm"] = "no network"
    line = "2. CPU of a governed call / LiteLLM's: goal ≤ 0.006667, NOT MEASURED (litellm: no network)"
    assert line in lines(results)


def test_supervisor_cpu_counts_as_added_cost() -> None:
    results = findings(**{GOVERNED: 0.0, BARE: 100.0})
    results.figures[GOVERNED].samples[COMPARED_AT] = [Sample(QUICK, Cost(150.0), supervisor=Cost(20.0))]
    (line,) = [line for line in lines(results) if "billing" in line]
    assert line.endswith("goal ≤ 60 %, measured 70 %: NOT HELD")


def test_limit_within_the_spread_of_the_rounds_is_undecided() -> None:
    results = findings(envoy=0.0)
    results.figures[GOVERNED] = Figures(GOVERNED, "1", {COMPARED_AT: rounds(90, 85, 95, 91, 101)})
    results.figures["envoy"].samples[COMPARED_AT] = rounds(50, 50, 50, 50, 50)
    line = CPU_BESIDE_ENVOY.line(results)
    assert line == "2. CPU: goal ≤ 2, measured 1.82 (1.7 to 2.02): undecided (the limit is within the spread)"


def test_rounds_are_compared_with_their_neighbours() -> None:
    drifting = [100.0, 150.0, 400.0]
    beside = [50.0, 75.0, 200.0]
    assert Measured.ratio(drifting, beside) == Measured(2.0, 2.0, 2.0)


def test_negative_cost_is_never_held() -> None:
    results = findings(tollgate_governed=90.0, tollgate_bare=95.0)
    (line,) = [line for line in lines(results) if "billing" in line]
    assert line.endswith("measured -5.263 %: undecided (a cost below 0 is lost in the noise)")


def test_unknown_switches_of_a_round_are_left_out_of_the_median() -> None:
    samples = [Sample(QUICK, Cost(1, switches=switches)) for switches in (1.0, nan, 3.0)]
    assert Figures("one", "1", {64: samples}).median(64, lambda sample: sample.worker.switches) == 2.0


def test_nothing_is_measured_on_a_machine_that_stays_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(quiet, "machine_cpu_s", lambda: float(next(clock)))
    monkeypatch.setattr(quiet, "PAUSE_S", 0)
    tries: list[int] = []
    with pytest.raises(quiet.BusyError):
        quiet.Machine().undisturbed(lambda: tries.append(1), {})
    assert len(tries) == quiet.TRIES


def test_measurement_on_a_shared_machine_counts_and_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 1000.0))
    monkeypatch.setattr(quiet, "machine_cpu_s", lambda: next(clock))
    machine = quiet.Machine(may_be_shared=True)
    assert machine.undisturbed(lambda: "done", {}) == ("done", {})
    assert machine.foreign_shares[0] > quiet.BUSY_SHARE


def test_failed_measurement_on_a_busy_machine_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 1000.0, 1000.0, 1000.0))
    monkeypatch.setattr(quiet, "machine_cpu_s", lambda: next(clock))
    monkeypatch.setattr(quiet, "PAUSE_S", 0)
    outcomes = iter((BenchError("503"), None))

    def act() -> str:
        time.sleep(0.001)  # the measured time must not be zero
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome
        return "done"

    assert quiet.Machine().undisturbed(act, {})[0] == "done"


def test_wrk_latencies_in_seconds_are_parsed() -> None:
    assert parse(SLOW) == Load(89, 17.76, 509_230.0, 2_480_000.0)


def test_non_2xx_answers_fail_the_load() -> None:
    with pytest.raises(BenchError, match="Non-2xx or 3xx responses: 30"):
        parse(SLOW + "  Non-2xx or 3xx responses: 30\n")


def test_refused_and_broken_streams_and_overlaps_are_counted() -> None:
    whole = Watch(0.3, 1.0, 2.0, 9.0, tail=b"data: [DONE]\n\n\r\n0\r\n\r\n", frames=3)
    cut = Watch(0.3, 1.0, 3.0, 8.0, stalls=2)
    late = Watch(0.3, 9.5, 9.6, 9.7, refused=True)
    sums = summary([whole, cut, late])
    assert (sums["at_once"], sums["broken"], sums["refused"], sums["stalls"], sums["frames"]) == (2, 1, 1, 2, 3)


def test_soak_reports_which_figures_grew() -> None:
    def taken(number: int, cost_us: float) -> Slice:
        costs = {"worker": cost_us, "supervisor": 1.0, "redis": 1.0}
        return Slice(number, costs, costs, {"worker": 50.0 + max(0, number - 6) * 10})

    flat = [taken(0, 100.0) for _ in range(9)]
    assert all(is_flat for _, is_flat in verdicts(flat))
    growing = [taken(number, 100.0 + 10 * number) for number in range(9)]
    assert [is_flat for _, is_flat in verdicts(growing)] == [False, False, True, False]
