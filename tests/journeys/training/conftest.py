"""One product that trains, with room for a few small nodes, for all journeys of training."""

from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from tests.journeys.conftest import Workspace, started
from tests.journeys.product import OperatorClient, Product
from tests.journeys.training.scene import Training

SETTINGS = {
    "TOLLGATE_TRAINING_BACKEND": "local",
    "TOLLGATE_TRAINING_CAPACITY": "cpu=4,memory=4Gi,nodes=8",
    "TOLLGATE_TRAINING_STOP_GRACE_S": "2",
    "TOLLGATE_CHECKPOINT_MAX_SIZE": "64Mi",
}


@pytest.fixture(scope="package")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """The product, and a workspace that may create training jobs."""
    product = Product(tmp_path_factory.mktemp("training") / "data", workers=1, settings=SETTINGS)
    with started(product) as workspace:
        product.command("workspace", "set", "acme", "--training")
        yield workspace
        assert product.stop() == 0, product.log_tail()


@pytest.fixture
async def training(trained: Workspace, session: aiohttp.ClientSession, request: pytest.FixtureRequest) -> Training:
    operator = OperatorClient(session, trained.product, trained.api_key)
    return await Training.begin(operator, trained.product, request.node.name)


@pytest.fixture
async def killable(training: Training) -> AsyncIterator[Training]:
    """The product for journeys that kill parts of it: the next journey finds all of it running."""
    yield training
    if not training.product.is_running:
        training.product.start()
