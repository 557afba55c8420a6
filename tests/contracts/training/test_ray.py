"""The ray backend on a real Ray of two nodes: what `test_backends.py` asks, as far as a minute allows, and more.

Each job costs several processes of Ray's, so all start together, and each test waits for its own. Each test has a
backend of its own, as after a restart of the trainer. The last two tests take the cluster apart.
"""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ray.util.state import list_placement_groups

from policy.training.job_spec import LoadSpec
from policy.training.reports import Claimed, JobReport, Load, Restore
from policy.training.statuses import Outcome, Phase
from policy.training.weights import Weights
from tests.contracts.training.backends import SMALL, all_output, claimed, report_of, settings
from tests.podman import BARE, NODE
from tests.ports import own_port
from tests.ray_cluster import CPUS, HEAD, SECOND, RayCluster, running_ray
from tests.waiting import eventually
from tests.weights_sources import FILES, WeightsSources, serving_weights
from trainer.backend import BackendAwayError, NoTerminalError
from trainer.edges.checkpoints import checkpoints_in
from trainer.edges.ray import RayBackend
from trainer.settings import Settings, WeightsTerms

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning"),  # how Ray's client calls aiohttp,
    pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning"),  # and leaves its connection
]
PATIENCE_S = 150.0
SECRET = "hush-hush-hush"
HUB_TOKEN = "hush-hush-of-the-hub"
TALK = f"""{sys.executable} -c '
import os, socket
rank, leader = os.environ["TOLLGATE_NODE_RANK"], os.environ["TOLLGATE_LEADER_ADDR"]
port = int(os.environ["PORT"])
if rank == "0":
    server = socket.create_server((leader, port))
    print(server.accept()[0].recv(100).decode())
else:
    while True:
        try:
            socket.create_connection((leader, port)).sendall(b"hello from node " + rank.encode())
            break
        except ConnectionRefusedError:
            pass
'"""
SAVE = (
    'if [ $TOLLGATE_NODE_RANK = 0 ]; then cd "$TOLLGATE_CHECKPOINT_DIR"; mkdir step-1; echo weights > step-1/model;'
    " touch step-1/.complete; fi"
)
STUBBORN = 'trap "echo asked" TERM; echo up; while :; do sleep 0.2; done'


WEIGHTS = {
    "weights": (
        Weights("hf://acme/gated-tiny", "models/tiny", HUB_TOKEN),
        Weights(f"https://{FILES}/one.bin", "one.bin"),
    ),
    "no-weights": (Weights("hf://acme/none", "models/none", HUB_TOKEN),),
    "slow-weights": (Weights("s3://public/slow", "slow"),),
}
"""The weights of jobs, by the token of their environment."""


@dataclass
class Stage:
    """The cluster, a control that gives out environments, and the backend."""

    cluster: RayCluster
    settings: Settings
    backend: RayBackend

    def another_backend(self, directory: Path) -> RayBackend:
        """Return a backend as a trainer has it that starts again."""
        return ray_backend(replace(self.settings, directory=directory))


@dataclass
class Jobs:
    talking: Claimed
    failing: Claimed
    refused: Claimed
    preempted: Claimed
    stopped: Claimed
    losing: Claimed


def ray_backend(own: Settings) -> RayBackend:
    async def nobody_asks(token: str) -> None:
        raise AssertionError("the driver spends the token")

    return RayBackend(own, nobody_asks, checkpoints_in(own.checkpoint_store))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with running_ray() as cluster:
        yield cluster


class Control(BaseHTTPRequestHandler):
    """Gives out environments."""

    def do_POST(self) -> None:
        token = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["token"]
        weights = [one.to_wire() for one in WEIGHTS.get(token, ())]
        variables = {"PORT": str(own_port()), "TOKEN": SECRET}
        environment_answer = {"environment": variables, "secrets": [SECRET], "weights": weights}
        refusal = {"error": "There is no secret named HF_TOKEN"}
        answer = json.dumps(refusal if token == "refused" else environment_answer).encode()
        self.send_response(409 if token == "refused" else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def control() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", own_port()), Control) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeightsSources]:
    with serving_weights(tmp_path_factory.mktemp("sources")) as serving:
        serving.token = HUB_TOKEN
        serving.models["acme/gated-tiny"] = {"config.json": b"{}", "sub/model.safetensors": bytes(2_000_000)}
        serving.files["/one.bin"] = b"one"
        serving.buckets["public"] = {"slow": bytes(2_000_000)}
        yield serving


@pytest.fixture(scope="module")
def own_settings(
    cluster: RayCluster, control: str, sources: WeightsSources, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    directory = tmp_path_factory.mktemp("ray")
    terms = WeightsTerms(hub_url=sources.url, s3_url=sources.url, egress_allow=sources.link)
    return replace(
        settings(directory / "training"),
        control_url=control,
        ray_address=cluster.address,
        checkpoint_store=(directory / "store").as_uri(),
        stop_grace_s=4.0,
        weights=terms,
        egress_ca_file=sources.ca_file,
    )


@pytest.fixture(scope="module")
def jobs(own_settings: Settings) -> Jobs:
    """All of them, started together. The long ones run until a test ends them."""
    rank_1_fails = "[ $TOLLGATE_NODE_RANK = 0 ] && sleep 1000; exit 3"
    jobs = Jobs(
        talking=claimed(TALK, 'echo "token $TOKEN"', SAVE, node_count=2, checkpoint_path="saved"),
        failing=claimed(rank_1_fails, node_count=2),
        refused=replace(claimed("echo never"), environment_token="refused"),
        preempted=claimed(STUBBORN),
        stopped=claimed("sleep 1000"),
        losing=claimed("sleep 1000", node_count=2),
    )
    asyncio.run(start(own_settings, jobs))
    return jobs


async def start(own: Settings, jobs: Jobs) -> None:
    backend = ray_backend(own)
    hosts = [host.name for host in await backend.hosts()]
    for job in (jobs.talking, jobs.failing, jobs.refused, jobs.preempted, jobs.stopped, jobs.losing):
        await backend.start(job, hosts[: job.spec.node_count])
    await backend.stop(jobs.stopped.job_id, Outcome.STOPPED)
    await backend.close()


@pytest.fixture
async def stage(cluster: RayCluster, own_settings: Settings) -> AsyncIterator[Stage]:
    backend = ray_backend(own_settings)
    await backend.open()
    yield Stage(cluster, own_settings, backend)
    await backend.close()


async def in_phase(backend: RayBackend, job: Claimed, phase: Phase) -> JobReport:
    reports: list[JobReport | None] = [None]

    async def look() -> JobReport | None:
        reports[0] = await report_of(backend, job)
        return reports[0] if reports[0] is not None and reports[0].phase is phase else None

    report: JobReport = await eventually(look, lambda: f"{phase}: {reports[0]}", PATIENCE_S, every_s=0.1)
    return report


async def whole_output(backend: RayBackend, job: Claimed, rank: int = 0) -> list[str]:
    async def is_whole() -> bool:
        offset = 0
        while True:
            chunk = await backend.output(job.job_id, job.attempt, rank, offset)
            if chunk.is_end or chunk.next_offset == offset:
                return chunk.is_end
            offset = chunk.next_offset

    await eventually(is_whole, "the end of the output", PATIENCE_S, every_s=0.1)
    return [text for _, text in await all_output(backend, job, rank)]


async def test_hosts_are_the_machines_of_the_cluster(stage: Stage) -> None:
    hosts = await stage.backend.hosts()

    assert [host.name.rpartition("-")[0] for host in hosts] == [HEAD, SECOND]
    assert {(host.millicpu, host.memory_mib) for host in hosts} == {(CPUS * 1000, 4096)}


async def test_started_job_is_observed_at_once_with_its_hosts(stage: Stage, jobs: Jobs) -> None:
    report = await report_of(stage.backend, jobs.losing)

    assert report is not None
    assert [node.host.rpartition("-")[0] for node in report.nodes] == [HEAD, SECOND]


async def test_two_nodes_talk_and_complete_the_job(stage: Stage, jobs: Jobs) -> None:
    report = await in_phase(stage.backend, jobs.talking, Phase.ENDED)

    assert (report.outcome, report.error_message) == (Outcome.COMPLETED, None)
    assert [node.exit_status for node in report.nodes] == [0, 0]
    assert await whole_output(stage.backend, jobs.talking) == ["hello from node 1", "token ***"]
    assert await whole_output(stage.backend, jobs.talking, rank=1) == ["token ***"]


async def test_checkpoint_on_the_leaders_machine_goes_into_the_store(stage: Stage, jobs: Jobs) -> None:
    await in_phase(stage.backend, jobs.talking, Phase.ENDED)

    async def synced() -> bool:
        report = await report_of(stage.backend, jobs.talking)
        return report is not None and not report.is_syncing

    await eventually(synced, "the checkpoints are in the store", PATIENCE_S, every_s=0.1)
    [checkpoint] = await stage.backend.checkpoints(jobs.talking.job_id, 1)

    assert checkpoint.name == "step-1"
    assert checkpoint.files is not None
    assert [file.path for file in checkpoint.files if file.path == "model"] == ["model"]


async def test_each_machine_has_the_checkpoints_that_a_job_loads(stage: Stage, jobs: Jobs) -> None:
    await in_phase(stage.backend, jobs.talking, Phase.ENDED)

    async def stored() -> list[Restore]:
        reports = await stage.backend.checkpoints(jobs.talking.job_id, 1)
        return [Restore(one.name, one.location, one.files) for one in reports if one.files is not None]

    [checkpoint] = await eventually(stored, "the checkpoint is in the store", PATIENCE_S, every_s=0.1)
    reading = "test -f $BT_LOAD_CHECKPOINT_DIR/rank-0/step-1/model && echo loaded"
    job = replace(claimed(reading, node_count=2, load=LoadSpec(())), loads=(Load("rank-0", checkpoint),))
    await stage.backend.start(job, [host.name for host in await stage.backend.hosts()])

    report = await in_phase(stage.backend, job, Phase.ENDED)

    assert (report.outcome, report.error_message) == (Outcome.COMPLETED, None)
    assert [await whole_output(stage.backend, job, rank) for rank in (0, 1)] == [["loaded"], ["loaded"]]


async def test_each_machine_has_the_weights_of_a_job(stage: Stage, sources: WeightsSources) -> None:
    reading = 'cd "$BT_WEIGHTS_DIR" && cat one.bin && echo && find . -type f | sort'
    job = replace(claimed(reading, node_count=2), environment_token="weights")
    await stage.backend.start(job, [host.name for host in await stage.backend.hosts()])

    report = await in_phase(stage.backend, job, Phase.ENDED)

    assert (report.outcome, report.error_message) == (Outcome.COMPLETED, None)
    for rank in (0, 1):
        lines = await whole_output(stage.backend, job, rank)
        assert lines[-4:] == ["one", "./models/tiny/config.json", "./models/tiny/sub/model.safetensors", "./one.bin"]
        assert lines[0] == "Tollgate: weights.0 (hf://acme/gated-tiny): fetching 2 files (1.9 MiB)"
        assert len(lines) == 8, "each line is there once, although it was told before the start and after it"


async def test_weights_that_cannot_be_had_end_the_job(stage: Stage) -> None:
    job = replace(claimed("echo never"), environment_token="no-weights")
    await stage.backend.start(job, [(await stage.backend.hosts())[0].name])

    report = await in_phase(stage.backend, job, Phase.ENDED)

    assert report.outcome is Outcome.DEPLOY_FAILED
    assert "weights.0 (hf://acme/none) could not be fetched: the source refuses the credential" in str(
        report.error_message
    )


async def test_stop_ends_a_fetch(stage: Stage, sources: WeightsSources) -> None:
    sources.pause = threading.Event()
    job = replace(claimed("echo never"), environment_token="slow-weights")
    await stage.backend.start(job, [(await stage.backend.hosts())[0].name])

    async def told() -> bool:
        chunk = await stage.backend.output(job.job_id, job.attempt, 0, 0)
        return any("fetching 1 file " in text for *_, text in chunk.lines)

    await eventually(told, "the fetch", PATIENCE_S, every_s=0.1)
    await stage.backend.stop(job.job_id, Outcome.STOPPED)
    report = await in_phase(stage.backend, job, Phase.ENDED)
    sources.pause.set()
    sources.pause = None

    assert (report.outcome, report.error_message) == (Outcome.STOPPED, None)


async def test_node_that_fails_ends_the_others_and_the_job(stage: Stage, jobs: Jobs) -> None:
    report = await in_phase(stage.backend, jobs.failing, Phase.ENDED)

    assert (report.outcome, report.error_message) == (Outcome.FAILED, "node 1 exited with status 3")


async def test_refused_environment_ends_the_attempt_before_anything_runs(stage: Stage, jobs: Jobs) -> None:
    report = await in_phase(stage.backend, jobs.refused, Phase.ENDED)

    assert (report.outcome, report.error_message) == (Outcome.DEPLOY_FAILED, "There is no secret named HF_TOKEN")


async def test_job_that_is_stopped_before_it_started_never_runs(stage: Stage, jobs: Jobs) -> None:
    report = await in_phase(stage.backend, jobs.stopped, Phase.ENDED)

    assert (report.outcome, report.error_message) == (Outcome.STOPPED, None)


async def test_nodes_reserve_the_resources_of_their_instance_type(stage: Stage, jobs: Jobs) -> None:
    await in_phase(stage.backend, jobs.losing, Phase.RUNNING)

    groups = list_placement_groups(stage.cluster.address, filters=[("state", "=", "CREATED")], detail=True)
    bundles = [
        bundle["unit_resources"] for group in groups if len(group["bundles"]) == 2 for bundle in group["bundles"]
    ]

    assert [(bundle["CPU"], bundle["memory"]) for bundle in bundles] == [(1.0, SMALL.memory_mib * 2.0**20)] * 2


async def test_restarted_trainer_finds_its_job_and_what_its_stop_means(
    stage: Stage, jobs: Jobs, tmp_path: Path
) -> None:
    await in_phase(stage.backend, jobs.preempted, Phase.RUNNING)
    await stage.backend.stop(jobs.preempted.job_id, Outcome.REQUEUED)
    restarted = stage.another_backend(stage.settings.directory)
    await restarted.open()

    report = await in_phase(restarted, jobs.preempted, Phase.ENDED)
    output = await whole_output(restarted, jobs.preempted)
    await restarted.close()

    assert (report.outcome, report.error_message) == (Outcome.REQUEUED, None)
    assert "asked" in output, "it had its grace period, and the driver too"


async def test_trainer_on_another_machine_reads_the_whole_output_again(
    stage: Stage, jobs: Jobs, tmp_path: Path
) -> None:
    before = await whole_output(stage.backend, jobs.talking)
    moved = stage.another_backend(tmp_path)
    await moved.open()

    await in_phase(moved, jobs.talking, Phase.ENDED)
    after = await whole_output(moved, jobs.talking)
    await moved.close()

    assert after == before


async def test_start_on_a_host_that_has_left_puts_the_job_back(stage: Stage) -> None:
    job = claimed("echo never")

    await stage.backend.start(job, ["10.9.9.9-ab12cd34"])
    report = await report_of(stage.backend, job)

    assert report is not None
    assert (report.phase, report.outcome) == (Phase.ENDED, Outcome.REQUEUED)
    assert report.error_message == "10.9.9.9-ab12cd34 left the Ray cluster before the start"


async def test_node_has_no_terminal(stage: Stage, jobs: Jobs) -> None:
    assert not stage.backend.has_sessions
    with pytest.raises(NoTerminalError):
        await stage.backend.terminal(jobs.losing.job_id, 1, 0)


async def test_secret_is_nowhere_in_ray(stage: Stage, jobs: Jobs) -> None:
    await whole_output(stage.backend, jobs.talking)

    logs = [path for path in stage.cluster.directory.glob("n*/session_2*/logs/**/*") if path.is_file()]
    secrets = (SECRET.encode(), HUB_TOKEN.encode())
    holding = [path for path in logs if any(secret in path.read_bytes() for secret in secrets)]

    assert any("job-driver" in path.name for path in logs)
    assert holding == []


async def test_forgotten_job_leaves_nothing_on_the_machines(stage: Stage, jobs: Jobs) -> None:
    name = f"{jobs.failing.job_id}-{jobs.failing.attempt}"
    await whole_output(stage.backend, jobs.failing)

    await stage.backend.forget(jobs.failing.job_id, with_store=True)
    await stage.backend.forget(jobs.failing.job_id, with_store=True)

    assert await report_of(stage.backend, jobs.failing) is None
    assert list(stage.settings.directory.rglob(f"{name}*")) == []


@pytest.fixture
async def imaging(stage: Stage, tmp_path: Path) -> AsyncIterator[RayBackend]:
    """A backend whose machines have Podman."""
    backend = ray_backend(replace(stage.settings, directory=tmp_path, has_ray_images=True))
    yield backend
    await backend.close()


async def test_nodes_run_in_the_image_of_their_job(stage: Stage, imaging: RayBackend) -> None:
    commands = ('echo "in $FROM_IMAGE, token $TOKEN"', SAVE)
    job = claimed(*commands, node_count=2, base_image=NODE, checkpoint_path="saved")
    await imaging.start(job, [host.name for host in await imaging.hosts()])

    report = await in_phase(imaging, job, Phase.ENDED)

    assert (report.outcome, report.error_message) == (Outcome.COMPLETED, None)
    for rank in (0, 1):
        assert await whole_output(imaging, job, rank) == [f"in {NODE}, token ***"]

    async def stored() -> bool:
        reports = await imaging.checkpoints(job.job_id, 1)
        return [one.name for one in reports if one.files is not None] == ["step-1"]

    await eventually(stored, "the checkpoint is in the store", PATIENCE_S, every_s=0.1)
    runs = stage.cluster.podman.runs()
    assert {run["image"] for run in runs} == {NODE}
    workers = [dict(run["options"]) for run in runs if ["--pid", "host"] in run["options"]]
    assert len(workers) == 2
    for options in workers:
        assert ("--rm" in options, options["--userns"]) == (True, "keep-id")
    assert SECRET not in json.dumps(runs), "others can read command lines"


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (BARE, f"the image {BARE} needs Ray"),
        ("python:3.11", "the image docker.io/library/python:3.11 cannot be run: Error: initializing source"),
        ("python:3.11;id", "'python:3.11;id' is not the name of a container image"),
    ],
)
async def test_image_without_a_node_ends_the_job_before_its_first_command(
    imaging: RayBackend, image: str, reason: str
) -> None:
    job = claimed("echo never", base_image=image)
    await imaging.start(job, [(await imaging.hosts())[0].name])

    report = await in_phase(imaging, job, Phase.ENDED)

    assert report.outcome is Outcome.DEPLOY_FAILED
    assert report.error_message is not None
    assert reason in report.error_message
    assert await whole_output(imaging, job) == []


async def test_image_is_not_used_where_machines_have_no_podman(stage: Stage) -> None:
    job = claimed('echo "in ${FROM_IMAGE:-none}"', base_image="python:3.11")
    await stage.backend.start(job, [(await stage.backend.hosts())[0].name])

    await in_phase(stage.backend, job, Phase.ENDED)
    notice, line = await whole_output(stage.backend, job)

    assert notice.startswith("Tollgate: the image python:3.11 is not used: ")
    assert line == "in none"


async def test_lost_machine_fails_the_job_with_its_name(stage: Stage, jobs: Jobs) -> None:
    await in_phase(stage.backend, jobs.losing, Phase.RUNNING)
    machine = (await stage.backend.hosts())[1].name

    stage.cluster.kill_node(1)
    report = await in_phase(stage.backend, jobs.losing, Phase.ENDED)

    assert report.outcome is Outcome.FAILED
    assert report.error_message == f"node 1 was lost: its machine {machine} left the Ray cluster"


async def test_cluster_that_is_away_is_said_with_what_to_check(stage: Stage, jobs: Jobs) -> None:
    await asyncio.to_thread(stage.cluster.stop)

    with pytest.raises(BackendAwayError, match=r"is away: .*Check TOLLGATE_RAY_ADDRESS"):
        await stage.backend.observe()
    with pytest.raises(BackendAwayError):
        await stage.backend.hosts()
    with pytest.raises(BackendAwayError):
        await stage.backend.start(claimed("echo never"), ["any"])
