"""Training between tenants: who may run code, and what another workspace sees."""

import aiohttp

from tests.journeys.conftest import Workspace
from tests.journeys.product import OperatorClient
from tests.journeys.training.scene import Training, job_body
from tests.waiting import eventually


async def test_only_a_workspace_that_may_train_creates_jobs(trained: Workspace, session: aiohttp.ClientSession) -> None:
    product = trained.product
    created = product.command("workspace", "create", "globex", "--prefix", "globex")
    globex = OperatorClient(session, product, created["api_key"])
    training = await Training.begin(globex, product, "p")

    status, answer = await globex.ask("POST", training.jobs, {"training_job": job_body("true")})
    assert (status, answer["code"]) == (403, "TRAINING_NOT_ENABLED")

    product.command("workspace", "set", "globex", "--training")
    job = await training.create("true")
    await job.until("COMPLETED")
    product.command("workspace", "set", "globex", "--no-training")
    assert (await globex.ask("POST", f"{job.path}/recreate"))[0] == 403
    assert await job.status() == "COMPLETED"


async def test_another_workspace_sees_nothing_of_a_job(
    training: Training, trained: Workspace, session: aiohttp.ClientSession
) -> None:
    saved = "d=$TOLLGATE_CHECKPOINT_DIR/c; mkdir $d; echo 1 > $d/w; touch $d/.complete"
    job = await training.create(saved, runtime={"checkpointing_config": {"enabled": True}})
    (checkpoint,) = await job.synced(lambda checkpoints: len(checkpoints) == 1)
    await job.until("COMPLETED")
    created = trained.product.command("workspace", "create", "initech", "--prefix", "initech")
    trained.product.command("workspace", "set", "initech", "--training")
    stranger = OperatorClient(session, trained.product, created["api_key"])

    for method, path, body in (
        ("GET", job.path, None),
        ("POST", f"{job.path}/stop", None),
        ("DELETE", job.path, None),
        ("POST", f"{job.path}/recreate", None),
        ("POST", f"{job.path}/logs", {}),
        ("GET", f"{job.path}/metrics", None),
        ("GET", f"{job.path}/checkpoints", None),
        ("GET", f"{job.path}/checkpoints/{checkpoint['checkpoint_id']}/files", None),
        ("GET", f"{job.path}/auth_codes", None),
        ("POST", f"{job.path}/interactive_session", None),
        ("GET", f"/v1/training_projects/{training.project}", None),
        ("POST", training.jobs, {"training_job": job_body("true")}),
    ):
        assert (await stranger.ask(method, path, body))[0] == 404, (method, path)
    for criteria in ({"job_id": job.id}, {"project_id": training.project}, {}):
        answer = await stranger.call("POST", "/v1/training_jobs/search", criteria)
        assert answer == {"training_jobs": []}
    assert await stranger.call("GET", "/v1/training_projects") == {"training_projects": []}


async def test_job_says_which_checkpoint_is_not_stored_because_of_its_size(training: Training) -> None:
    saved = "d=$TOLLGATE_CHECKPOINT_DIR; mkdir $d/small $d/sparse; echo 1 > $d/small/w; truncate -s 1G $d/sparse/w"
    job = await training.create(saved, runtime={"checkpointing_config": {"enabled": True}})
    await job.until("COMPLETED")

    async def message() -> str | None:
        return str((await job.read())["error_message"] or "")

    error_message = await eventually(message)
    assert error_message.startswith(
        "checkpoint 'sparse' is not stored: its files are larger than 67108864 bytes together"
    )
    await job.synced(lambda checkpoints: len(checkpoints) == 1)
    assert len(await job.checkpoints()) == 1
