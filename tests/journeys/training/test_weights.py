"""Jobs whose weights come from a hub, a store and a host, as `truss train push` sends them."""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from tests.journeys.conftest import Workspace, started
from tests.journeys.product import OperatorClient, Product
from tests.journeys.training.conftest import SETTINGS
from tests.journeys.training.scene import Training
from tests.waiting import eventually
from tests.weights_sources import FILES, TOKEN, WeightsSources, serving_weights

LARGE = os.urandom(2_500_000)
SHOW = (
    'cd "$BT_WEIGHTS_DIR" && find . -type f | sort && cat models/tiny/config.json && [ $PWD = $TOLLGATE_WEIGHTS_DIR ]'
)
KEYS = '{"access_key_id": "AKIATEST", "secret_access_key": "the-secret-access-key", "region": "eu-test-1"}'


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeightsSources]:
    with serving_weights(tmp_path_factory.mktemp("sources")) as serving:
        serving.models["acme/gated-tiny"] = {"config.json": b"{}\n", "sub/model.safetensors": LARGE, "README.md": b"r"}
        serving.buckets["private"] = {"data/a.jsonl": b"a", "data/b.jsonl": LARGE}
        serving.files["/one.bin?sig=hidden"] = LARGE
        yield serving


@pytest.fixture(scope="module")
def weighing(sources: WeightsSources, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A product that trains and reaches the sources."""
    settings = SETTINGS | sources.settings | {"TOLLGATE_WEIGHTS_MAX_SIZE": "16Mi"}
    product = Product(tmp_path_factory.mktemp("weights") / "data", workers=1, settings=settings)
    with started(product) as workspace:
        product.command("workspace", "set", "acme", "--training")
        yield workspace
        assert product.stop() == 0, product.log_tail()


@pytest.fixture
async def training(weighing: Workspace, session: aiohttp.ClientSession, request: pytest.FixtureRequest) -> Training:
    operator = OperatorClient(session, weighing.product, weighing.api_key)
    return await Training.begin(operator, weighing.product, request.node.name)


async def test_weights_of_all_sources_are_there_before_the_first_command(training: Training) -> None:
    await training.operator.call("POST", "/v1/secrets", {"name": "hub", "value": TOKEN})
    await training.operator.call("POST", "/v1/secrets", {"name": "store", "value": KEYS})
    auth = {"auth_method": "CUSTOM_SECRET", "auth_secret_name": "hub"}
    weights = [
        {
            "source": "hf://acme/gated-tiny@main",
            "mount_location": "/models/tiny",
            "auth": auth,
            "ignore_patterns": ["*.md"],
        },
        {"source": "s3://private/data", "mount_location": "/data", "auth_secret_name": "store"},
        {"source": f"https://{FILES}/one.bin?sig=hidden", "mount_location": "/models/one.bin"},
    ]

    job = await training.create(SHOW, weights=weights, compute={"node_count": 2})

    await job.until("COMPLETED")
    log = await job.log()
    assert (await job.lines("./"))[:4] == [
        "./data/a.jsonl",
        "./data/b.jsonl",
        "./models/one.bin",
        "./models/tiny/config.json",
    ]
    assert len(await job.lines("./models/tiny/sub/model.safetensors")) == 2
    assert "Tollgate: weights.0 (hf://acme/gated-tiny@main): fetching 2 files (2.4 MiB)" in log
    assert (
        f"Tollgate: weights.2 (https://{FILES}/one.bin): 1 file (2.4 MiB) fetched to $BT_WEIGHTS_DIR/models/one.bin"
        in log
    )
    again = await job.recreate()
    await again.until("COMPLETED")
    texts = [log, *_small_texts_of(training)]
    for secret in (TOKEN, "the-secret-access-key", "sig=hidden"):
        assert not any(secret in text for text in texts)


def _small_texts_of(training: Training) -> Iterator[str]:
    """Yield the texts of the trainer's small files, and its log. It removes files of a job that ended meanwhile."""
    folders = os.walk(training.product.data / "training")
    paths = [Path(folder, name) for folder, _, names in folders for name in names]
    for path in (*paths, training.product.log):
        with suppress(FileNotFoundError):
            if path.is_file() and path.stat().st_size < len(LARGE):
                yield path.read_text(errors="replace")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"source": "hf://acme/none"},
            "weights.1 (hf://acme/none) could not be fetched: the source asks for a credential",
        ),
        ({"source": f"https://{FILES}/none"}, "could not be fetched: the source has no such files (404)"),
        ({"source": f"https://{FILES}/huge"}, "TOLLGATE_WEIGHTS_MAX_SIZE"),
    ],
)
async def test_weights_that_cannot_be_had_end_the_job_before_its_first_command(
    training: Training, sources: WeightsSources, entry: dict[str, str], message: str
) -> None:
    sources.files["/huge"] = b"h" * (17 << 20)
    first = {"source": f"https://{FILES}/one.bin?sig=hidden", "mount_location": "/a"}
    job = await training.create("echo never", weights=[first, entry | {"mount_location": "/b"}])
    ended = await job.until("DEPLOY_FAILED")
    assert message in ended["error_message"]
    assert "never" not in await job.log()
    assert await job.lines("weights.0")


@pytest.mark.parametrize(
    "url",
    ["https://127.0.0.1/m", "https://169.254.169.254/m", "https://localhost/m", "https://example.com:444/m"],
)
async def test_url_that_may_not_be_called_is_refused_at_once(training: Training, url: str) -> None:
    body = {"training_job": {"weights": [{"source": url, "mount_location": "/m"}]}}
    status, answer = await training.operator.ask("POST", training.jobs, body)
    assert (status, [detail["field"] for detail in answer["details"]]) == (400, ["training_job.weights.0.source"])


async def test_secret_of_weights_exists_and_stays_while_a_job_needs_it(
    training: Training, sources: WeightsSources
) -> None:
    entry = {"source": f"https://{FILES}/one.bin?sig=hidden", "mount_location": "/m", "auth_secret_name": "kept"}
    status, answer = await training.operator.ask("POST", training.jobs, {"training_job": {"weights": [entry]}})
    assert (status, answer["details"][0]["field"]) == (400, "training_job.weights.0.auth_secret_name")
    await training.operator.call("POST", "/v1/secrets", {"name": "kept", "value": "kept-for-the-job"})
    sources.pause = threading.Event()
    job = await training.create("true", weights=[entry])
    await job.until("DEPLOYING")
    assert (await training.operator.ask("DELETE", "/v1/secrets/kept"))[0] == 409
    sources.pause.set()
    sources.pause = None
    await job.until("COMPLETED")
    await training.operator.call("DELETE", "/v1/secrets/kept")


async def test_stop_ends_a_fetch(training: Training, sources: WeightsSources) -> None:
    sources.pause = threading.Event()
    before = len(sources.requests)
    job = await training.create(
        "echo never", weights=[{"source": f"https://{FILES}/one.bin?sig=hidden", "mount_location": "/m"}]
    )
    await eventually(lambda: len(sources.requests) > before, training.product.log_tail)
    await job.logged("fetching 1 file ")
    assert await job.status() == "DEPLOYING"
    await job.stop()
    await job.until("STOPPED")
    sources.pause.set()
    sources.pause = None
    assert "never" not in await job.log()
