"""One product with two workers and one async worker for these journeys, a customer's receiver, a model per journey."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

import aiohttp
import pytest

from tests.fakes.throwaway_ca import ThrowawayCa
from tests.journeys.async_requests.model import ModelServer
from tests.journeys.async_requests.scene import AsyncScene
from tests.journeys.conftest import Workspace, stage_of, started
from tests.journeys.product import Product
from tests.journeys.receivers import Receiver
from tests.upstream import ScriptedUpstream


@dataclass
class AsyncProduct:
    """A running product that trusts `ca`, and the address at which it finds the customer's receiver."""

    workspace: Workspace
    ca: ThrowawayCa
    receiver_port: int


MakeScene = Callable[..., Awaitable[AsyncScene]]


@pytest.fixture(scope="package")
def async_product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncProduct]:
    directory = tmp_path_factory.mktemp("async")
    ca = ThrowawayCa(directory)
    receiver = Receiver("results")
    product = Product(
        directory / "data",
        settings={
            "TOLLGATE_ASYNC_WORKERS": "1",
            "TOLLGATE_DRAIN_TIMEOUT_S": "3",
            "TOLLGATE_EGRESS_ALLOW": f"127.0.0.0/8,{receiver.link}",
            "TOLLGATE_EGRESS_CA_FILE": str(ca.ca_file),
        },
    )
    with started(product) as workspace:
        yield AsyncProduct(workspace, ca, receiver.port)
        assert product.stop() == 0, product.log_tail()


@pytest.fixture
async def receiver(async_product: AsyncProduct) -> AsyncIterator[Receiver]:
    receiver = Receiver("results", port=async_product.receiver_port)
    await receiver.start(async_product.ca)
    yield receiver
    await receiver.stop()


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    model = ModelServer()
    await model.start()
    yield model
    model.release()
    await model.stop()


@pytest.fixture
async def make_scene(
    async_product: AsyncProduct,
    session: aiohttp.ClientSession,
    upstream: ScriptedUpstream,
    receiver: Receiver,
    model: ModelServer,
    numbers: Iterator[int],
) -> MakeScene:
    """Make a model whose deployment has these settings; `replicas=False` leaves it without one."""

    async def make(*, replicas: bool = True, **settings: object) -> AsyncScene:
        stage = stage_of(async_product.workspace, session, upstream, f"async-{next(numbers)}")
        operator = stage.operator
        # The first GET makes the secret. The proxy learns of changes in their order: of the secret, then of the rest.
        secret = (await operator.call("GET", "/v1/async/webhook_secret"))["secrets"][0]
        model_id = (await operator.call("POST", "/v1/models", {"name": stage.name}))["id"]
        path = f"/v1/models/{model_id}"
        deployment = await operator.call("POST", f"{path}/deployments", {"name": "first", **settings})
        await operator.call("PUT", f"{path}/environments/production", {"deployment_id": deployment["id"]})
        scene = AsyncScene(stage, model, receiver, model_id, deployment["id"], secret)
        await scene.replicas(*([model.url] if replicas else []))
        await scene.stage.until(lambda: _known(scene), "the proxy knows the deployment")
        if replicas:  # a call waits until the proxy knows them
            assert (await scene.ask("POST", f"{scene.path}/production/predict", {}))[0] == 200
            model.calls.clear()
        return scene

    return make


async def _known(scene: AsyncScene) -> bool:
    status, _ = await scene.ask("GET", f"{scene.path}/production/async_queue_status")
    return status == 200


@pytest.fixture
async def scene(make_scene: MakeScene) -> AsyncIterator[AsyncScene]:
    """A model without bounds. In the end every request that was accepted has ended."""
    scene = await make_scene()
    yield scene
    scene.model.release()
    await asyncio.wait_for(scene.ended(), 30)
