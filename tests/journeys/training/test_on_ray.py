"""The same runs with the whole product on a real Ray cluster of two nodes."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.journeys.conftest import started
from tests.journeys.product import OperatorClient, Product
from tests.journeys.training.scene import TRAIN, Training
from tests.journeys.training.test_uploads import archive, uploaded
from tests.ports import own_port
from tests.ray_cluster import RayCluster, running_ray

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]


@pytest.fixture
async def on_ray(
    tmp_path_factory: pytest.TempPathFactory, session: aiohttp.ClientSession
) -> AsyncIterator[tuple[Training, RayCluster]]:
    with running_ray() as cluster:
        settings = {"TOLLGATE_TRAINING_BACKEND": "ray", "TOLLGATE_RAY_ADDRESS": cluster.address}
        product = Product(tmp_path_factory.mktemp("ray") / "data", workers=1, settings=settings)
        with started(product) as workspace:
            product.command("workspace", "set", "acme", "--training")
            operator = OperatorClient(session, product, workspace.api_key)
            yield await Training.begin(operator, product, "on-ray"), cluster
            assert product.stop() == 0, product.log_tail()


async def test_two_nodes_train_and_a_recreated_job_resumes(on_ray: tuple[Training, RayCluster]) -> None:
    training, _ = on_ray
    variables = {"STEPS": "60", "CHECKPOINT_EVERY": "30", "GRADIENT_PORT": str(own_port())}
    runtime = {"environment_variables": variables, "checkpointing_config": {"enabled": True}}
    job = await training.create(TRAIN, compute={"node_count": 2}, runtime=runtime)

    await job.until("COMPLETED", within_s=120)

    log = await job.log()
    assert "1 other nodes are connected" in log
    assert "connected to the leader" in log
    assert [point["step"] for point in await job.points()] == list(range(1, 61))
    await job.synced(lambda checkpoints: len(checkpoints) == 2)
    again = await job.recreate()
    await again.until("COMPLETED", within_s=120)
    assert "resumes from step 60" in await again.log()


async def test_pushed_files_are_where_each_node_runs(
    on_ray: tuple[Training, RayCluster], session: aiohttp.ClientSession
) -> None:
    training, _ = on_ray
    artifacts = [await uploaded(training, session, archive(train_py=b"print('trained')"))]
    job = await training.create("python3 train.py", runtime={"artifacts": artifacts}, compute={"node_count": 2})
    await job.until("COMPLETED", within_s=120)
    assert await job.lines("trained") == ["trained"] * 2
    bad = await training.create("true", runtime={"artifacts": [await uploaded(training, session, b"no archive")]})
    ended = await bad.until("DEPLOY_FAILED", within_s=120)
    assert "cannot be unpacked: it is not a tar archive" in ended["error_message"]


async def test_stop_and_a_failure_show_on_ray_as_on_local(on_ray: tuple[Training, RayCluster]) -> None:
    training, _ = on_ray
    stopping_job = await training.create("trap 'echo saving; exit 0' TERM; echo begun; while :; do sleep 0.1; done")
    failing = await training.create("echo why; exit 3")
    failed = await failing.until("FAILED", within_s=120)
    assert failed["error_message"] == "node 0 exited with status 3"
    await stopping_job.until("RUNNING", within_s=120)
    await stopping_job.logged("begun")
    await stopping_job.stop()
    await stopping_job.until("STOPPED", within_s=60)
    assert "saving" in await stopping_job.log()
