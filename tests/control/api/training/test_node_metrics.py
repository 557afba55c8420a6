"""The use that a job's nodes make of machines, as the original's clients read it, on both databases.

See docs/reference/training.md#logs-and-metrics.
"""

from typing import Any

import pytest

from control.edges.sql.store import now_ms
from control.edges.sql.training import job_rows
from control.resources.training_hosts.node_samples import SAMPLE_MS, SAMPLES_AT_ONCE, NodeSamples, window_of
from policy.training.node_use import NodeSample
from policy.training.statuses import COMPLETED, RUNNING
from tests.control.plane import ControlPlane, Json
from tests.control.resources.training.job_examples import job
from tests.control.trainer import HOST, PROJECT, Trainer, add_job

PATH = f"/v1/training_projects/{PROJECT}/jobs/tj_1/metrics"
START_MS = 1_700_000_000_000
EMPTY: Json = {
    "cpu_usage": [],
    "cpu_memory_usage_bytes": [],
    "gpu_utilization": {},
    "gpu_memory_usage_bytes": {},
    "ephemeral_storage": {"usage_bytes": [], "utilization": []},
}


def sample(at_ms: int, rank: int = 0, **more: Any) -> NodeSample:
    values: Json = {"cpu_millicores": 1500, "memory_bytes": 1024, "storage_bytes": 25, "storage_total_bytes": 100}
    return NodeSample(**{"job_id": "tj_1", "attempt": 1, "rank": rank, "timestamp_ms": at_ms, **values, **more})


async def report(plane: ControlPlane, *samples: NodeSample) -> None:
    body: Json = {"trainer": "t", "backend": "local", "reason": None, "has_sessions": True, "hosts": [HOST.to_wire()]}
    body |= {"jobs": [], "samples": [one.to_wire() for one in samples]}
    (await Trainer(plane).post("sync", body)).ok()


async def use(plane: ControlPlane, **body: Any) -> Json:
    answer: Json = (await plane.post(PATH, body)).ok()
    return answer


def times(answer: Json) -> list[str]:
    return [value["timestamp"] for value in answer["cpu_usage"]]


@pytest.fixture
async def place(plane: ControlPlane) -> ControlPlane:
    await add_job(plane, status=RUNNING, attempt=1, node_count=2)
    return plane


async def test_each_node_shows_what_it_uses_and_the_job_what_its_first_does(place: ControlPlane) -> None:
    at_ms = now_ms() // 1000 * 1000
    await report(place, sample(at_ms), sample(at_ms, rank=1, cpu_millicores=250, storage_bytes=None))
    answer = await use(place)
    time = answer["cpu_usage"][0]["timestamp"]
    assert answer.keys() == {*EMPTY, "training_job", "cache", "per_node_metrics"}
    assert answer["training_job"]["id"] == "tj_1"
    assert answer["cache"] is None
    first, second = answer["per_node_metrics"]
    assert (first["node_id"], second["node_id"]) == ("g00r0", "g00r1")
    assert first["metrics"] == {name: answer[name] for name in EMPTY}
    assert first["metrics"] == {
        "cpu_usage": [{"timestamp": time, "value": 1.5}],
        "cpu_memory_usage_bytes": [{"timestamp": time, "value": 1024}],
        "gpu_utilization": {},
        "gpu_memory_usage_bytes": {},
        "ephemeral_storage": {
            "usage_bytes": [{"timestamp": time, "value": 25}],
            "utilization": [{"timestamp": time, "value": 0.25}],
        },
    }
    assert second["metrics"]["cpu_usage"] == [{"timestamp": time, "value": 0.25}]
    assert second["metrics"]["ephemeral_storage"] == EMPTY["ephemeral_storage"]
    by_url = (await place.get(PATH)).ok()
    assert by_url == {"metrics": [], **answer}


async def test_a_window_has_both_of_its_ends_and_one_value_per_step(place: ControlPlane) -> None:
    await report(place, *(sample(START_MS + n * 15_000) for n in range(9)))
    window = {"start_epoch_millis": START_MS + 15_000, "end_epoch_millis": START_MS + 60_000}
    answer = await use(place, **window)
    assert times(answer) == [f"2023-11-14T22:13:{second}.000Z" for second in ("35", "50")] + [
        f"2023-11-14T22:14:{second}.000Z" for second in ("05", "20")
    ]
    assert times(await use(place, **window, step_seconds=60)) == [
        "2023-11-14T22:13:50.000Z",
        "2023-11-14T22:14:20.000Z",
    ]
    query = "&".join(f"{name}={value}" for name, value in window.items())
    assert times((await place.get(f"{PATH}?{query}")).ok()) == times(answer)


async def test_without_a_window_an_ended_job_shows_its_last_hour(plane: ControlPlane) -> None:
    await add_job(plane, status=COMPLETED, attempt=1, ended_at_ms=START_MS + 3_600_000)
    await report(plane, sample(START_MS - 15_000), sample(START_MS), sample(START_MS + 3_600_000))
    assert times(await use(plane)) == ["2023-11-14T22:13:20.000Z", "2023-11-14T23:13:20.000Z"]
    assert times(await use(plane, start_epoch_millis=None, end_epoch_millis=START_MS)) == [
        "2023-11-14T22:13:05.000Z",
        "2023-11-14T22:13:20.000Z",
    ]


async def test_a_sample_that_comes_again_or_is_of_nothing_here_is_left_out(place: ControlPlane) -> None:
    at_ms = now_ms()
    await report(place, sample(at_ms), sample(at_ms), sample(at_ms, rank=2), sample(at_ms, attempt=2))
    await report(place, sample(at_ms, cpu_millicores=9), sample(at_ms, job_id="tj_gone"))
    answer = await use(place)
    assert [value["value"] for value in answer["cpu_usage"]] == [1.5]
    assert [node["node_id"] for node in answer["per_node_metrics"]] == ["g00r0"]


async def test_a_job_without_samples_has_empty_lists(place: ControlPlane) -> None:
    assert {name: value for name, value in (await use(place)).items() if name != "training_job"} == {
        **EMPTY,
        "cache": None,
        "per_node_metrics": [],
    }


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"start_epoch_millis": 2, "end_epoch_millis": 1}, "start_epoch_millis"),
        ({"start_epoch_millis": -1}, "start_epoch_millis"),
        ({"end_epoch_millis": "now"}, "end_epoch_millis"),
        ({"step_seconds": 0}, "step_seconds"),
        ({"name": "loss"}, "name"),
    ],
)
async def test_a_bad_window_names_the_field(place: ControlPlane, body: Json, field: str) -> None:
    assert [one["field"] for one in (await place.post(PATH, body)).refused(400)["details"]] == [field]


@pytest.mark.parametrize(
    "change", [{"cpu_millicores": -1}, {"memory_bytes": 2**53 + 1}, {"timestamp_ms": 2**53}, {"job_id": ""}]
)
async def test_a_malformed_sample_is_refused(place: ControlPlane, change: Json) -> None:
    body: Json = {"trainer": "t", "backend": "local", "reason": None, "has_sessions": True, "hosts": [], "jobs": []}
    body |= {"samples": [sample(1).to_wire() | change]}
    assert "samples.0" in str((await Trainer(place).post("sync", body)).refused(400))


async def test_others_see_nothing(place: ControlPlane) -> None:
    key = (await place.another_workspace())["api_key"]
    (await place.post(PATH, {}, key=key)).refused(404)
    (await place.post(PATH.replace("tj_1", "tj_2"), {})).refused(404)


async def test_the_oldest_samples_go_and_all_of_a_job_that_is_gone(place: ControlPlane) -> None:
    await report(place, *(sample(START_MS + n * 15_000) for n in range(5)))
    samples = NodeSamples(place.store, max_samples=3)
    assert await samples.prune() == 2
    assert await samples.prune() == 0
    window = window_of(job(), START_MS, START_MS + 60_000, 1)
    assert [one.timestamp_ms for one in await samples.read("tj_1", window)] == [
        START_MS + n * 15_000 for n in (2, 3, 4)
    ]
    async with place.store.write() as tx:
        record = await job_rows.lock_job(tx, "tj_1")
        assert record is not None
        await job_rows.delete_job(tx, record)
    assert await samples.prune() == 3


def test_a_long_time_is_shown_in_longer_steps() -> None:
    many = job(node_count=100)
    window = window_of(many, 0, SAMPLE_MS * SAMPLES_AT_ONCE, 1)
    assert window.step_ms == SAMPLE_MS * 100
    assert window_of(job(), 0, 1000, None).step_ms == SAMPLE_MS
    assert window_of(job(), 0, 1000, 1).step_ms == 1000
