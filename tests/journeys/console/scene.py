"""A busy workspace: groups in a tree, slugs, keys, calls that end in each way, webhooks, a platform model,
asynchronous requests, a training job. Journeys of the console and `make console-shots` look at it.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes.throwaway_ca import ThrowawayCa
from tests.journeys.async_requests.model import ModelServer
from tests.journeys.async_requests.scene import AsyncScene
from tests.journeys.conftest import Stage, Workspace, stage_of, started
from tests.journeys.product import OperatorClient, Product, models
from tests.journeys.receivers import Receiver
from tests.journeys.training.scene import Job, Training
from tests.ports import own_port
from tests.upstream import ScriptedUpstream, Usage, answer_json, chat

SLUGS = ("acme/assistant", "acme/summaries", "acme/search")
_ANSWER = chat(("It was sent ", "on Tuesday."), Usage(1200, 250, 400), role_first=False)
_LOSS = """for n in 1 2 3 4 5 6 7 8; do echo '{"metric": "loss", "step": '$n', "value": 0.'$((90 - 9 * n))'}'; done"""
_CHECKPOINT = 'c="$TOLLGATE_CHECKPOINT_DIR/step-8"; mkdir -p "$c"; echo weights > "$c/weights"; touch "$c/.complete"'


@dataclass
class Place:
    """A product with all its parts, and the receivers of its customers, which are found at these ports."""

    workspace: Workspace
    ca: ThrowawayCa
    receivers: dict[str, int]

    @property
    def product(self) -> Product:
        return self.workspace.product


@contextmanager
def started_place(directory: Path) -> Iterator[Place]:
    """A product that serves calls, runs asynchronous requests, and trains."""
    ca = ThrowawayCa(directory)
    receivers = [Receiver(name) for name in ("billing", "broken", "results")]
    product = Product(
        directory / "data",
        workers=1,
        async_workers=1,
        settings={
            "TOLLGATE_EGRESS_ALLOW": ",".join(["127.0.0.0/8", *(one.link for one in receivers)]),
            "TOLLGATE_EGRESS_CA_FILE": str(ca.ca_file),
            "TOLLGATE_REGIONS": "eu-central",
            "TOLLGATE_WEBHOOK_POLL_INTERVAL_S": "0.1",
            "TOLLGATE_TRAINING_BACKEND": "local",
            "TOLLGATE_TRAINING_CAPACITY": "cpu=2,memory=2Gi,nodes=4",
        },
    )
    with started(product) as workspace:
        product.command("workspace", "set", "acme", "--training")
        yield Place(workspace, ca, {one.name: one.port for one in receivers})


@dataclass
class Scene:
    """The ids and keys of what the workspace has, and the means to add to it."""

    stage: Stage
    groups: dict[str, str]
    """Ids by external entity id. The tree: `acme` over `support` and `research`; `support` over `night-shift`."""
    keys: dict[str, str]
    """A federated key of each group."""
    workspace_keys: dict[str, str]
    """Keys of the workspace by their type."""
    webhooks: dict[str, str]
    model_id: str = ""
    job: Job | None = None
    asynchronous: AsyncScene | None = None

    @property
    def api_key(self) -> str:
        """The key that manages everything."""
        return self.stage.operator.api_key

    async def call(self, entity: str, slug: str = SLUGS[0], **more: Any) -> int:
        """Call a slug as a member of a group. Return the status of the answer."""
        body = {"model": slug, "messages": [{"role": "user", "content": "When was it sent?"}], **more}
        headers = {"authorization": f"Bearer {self.keys.get(entity, entity)}"}
        url = self.stage.product.proxy + "/v1/chat/completions"
        async with self.stage.session.post(url, json=body, headers=headers) as answer:
            await answer.read()
            return answer.status


@asynccontextmanager
async def furnish(place: Place) -> AsyncIterator[Scene]:
    """Fill the workspace; keep its upstream and its customers' receivers running as long as the scene is looked at."""
    receivers = [
        Receiver(name, status=500 if name == "broken" else 200, port=port) for name, port in place.receivers.items()
    ]
    model = ModelServer()
    async with (
        aiohttp.ClientSession() as session,
        ScriptedUpstream(default=_ANSWER, port=own_port()) as upstream,
    ):
        for one in receivers:
            await one.start(place.ca)
        await model.start()
        try:
            stage = stage_of(place.workspace, session, upstream, "console")
            yield await _furnished(stage, receivers, model)
        finally:
            model.release()
            await model.stop()
            for one in receivers:
                await one.stop()


async def _furnished(stage: Stage, receivers: list[Receiver], model: ModelServer) -> Scene:
    billing, broken, results = receivers
    webhooks = {one.name: await _webhook(stage.operator, one) for one in (billing, broken)}
    await _slugs(stage)
    groups = await _groups(stage.operator)
    keys = {entity: await stage.operator.key(id) for entity, id in groups.items()}
    scene = Scene(stage, groups, keys, await _workspace_keys(stage.operator), webhooks)
    await _calls(scene)
    await _asynchronous(scene, model, results)
    await _training(scene)
    await _changes(scene)
    await stage.until(lambda: _delivered(scene), "webhooks were sent")
    return scene


async def _slugs(stage: Stage) -> None:
    for number, slug in enumerate(SLUGS):
        await stage.operator.endpoint(slug, await stage.operator.model(f"model-{number}", stage.upstream.url))
    rates = {"input_per_million": "3", "cached_input_per_million": "0.3", "output_per_million": "15"}
    price = {"slug": SLUGS[0], "valid_from": "2020-01-01", "currency": "EUR", **rates}
    await stage.operator.call("PUT", "/v1/gateway/prices", price)


async def _groups(operator: OperatorClient) -> dict[str, str]:
    requests = ("REQUEST", "MINUTE", 600), ("TOKEN", "DAY", 2_000_000)
    ids = {"acme": await operator.group("acme", [one for slug in SLUGS for one in models(slug, *requests)])}
    cascading = {"limit_enforcement": "CASCADING"}
    ids["support"] = await operator.group(
        "support", models(SLUGS[0], ("REQUEST", "MINUTE", 120)), parent_group_id=ids["acme"]
    )
    ids["research"] = await operator.group(
        "research",
        [*models(SLUGS[0], ("REQUEST", "DAY", 5000)), *models(SLUGS[1], ("REQUEST", "MINUTE", 60))],
        parent_group_id=ids["acme"],
    )
    ids["night-shift"] = await operator.group(
        "night-shift", models(SLUGS[0], ("REQUEST", "MINUTE", 3)), parent_group_id=ids["support"]
    )
    ids["partner"] = await operator.group("partner", models(SLUGS[2], ("TOKEN", "MINUTE", 50_000)), **cascading)
    return ids


async def _workspace_keys(operator: OperatorClient) -> dict[str, str]:
    kinds = ("WORKSPACE_MANAGE_ALL", "WORKSPACE_INVOKE", "WORKSPACE_EXPORT_METRICS")
    created = [await operator.call("POST", "/v1/api_keys", {"type": kind, "name": kind.lower()}) for kind in kinds]
    return {one["type"]: one["api_key"] for one in created}


async def _webhook(operator: OperatorClient, receiver: Receiver) -> str:
    body = {"url": receiver.url, "description": f"events for {receiver.name}"}
    return str((await operator.call("POST", "/v1/gateway/webhooks", body))["id"])


async def _calls(scene: Scene) -> None:
    """Calls that succeed, streamed or not, are refused by a limit, or fail; some with tokens from a cache."""

    async def known() -> bool:
        return await scene.call("night-shift") == 200

    await scene.stage.until(known, "the proxy knows the keys")
    for entity, slug, count in (("support", SLUGS[0], 12), ("research", SLUGS[1], 8), ("partner", SLUGS[2], 5)):
        for number in range(count):
            streamed: dict[str, Any] = {"stream": True} if number % 3 == 0 else {}
            assert await scene.call(entity, slug, **streamed) == 200
    assert 429 in [await scene.call("night-shift") for _ in range(5)]
    scene.stage.upstream.plan(
        answer_json(500, {"error": {"message": "out of memory"}}), answer_json(400, {"error": {"message": "no"}})
    )
    assert [await scene.call("research", SLUGS[1]) for _ in range(2)] == [500, 400]
    assert await scene.call("research", "acme/unknown") == 404
    assert await scene.call("no such key") == 403


async def _asynchronous(scene: Scene, model: ModelServer, receiver: Receiver) -> None:
    """A platform model that runs two requests at once; requests that succeeded, that failed, and one that runs on."""
    operator = scene.stage.operator
    secret = (await operator.call("GET", "/v1/async/webhook_secret"))["secrets"][0]
    id = (await operator.call("POST", "/v1/models", {"name": "transcriber"}))["id"]
    bounded = {"name": "blue", "max_concurrency": 2}
    deployment = (await operator.call("POST", f"/v1/models/{id}/deployments", bounded))["id"]
    await operator.call("PUT", f"/v1/models/{id}/environments/production", {"deployment_id": deployment})
    async_scene = AsyncScene(scene.stage, model, receiver, id, deployment, secret)
    await async_scene.replicas(model.url)
    scene.model_id = id
    scene.asynchronous = async_scene

    async def serves() -> bool:
        return (await async_scene.ask("POST", f"{async_scene.path}/production/predict", {}))[0] == 200

    await scene.stage.until(serves, "the model serves")
    for input in ({"answer": {"text": "hello"}}, {"answer": {"text": "world"}}, {"status": 400}):
        await async_scene.until_ended(await async_scene.submit(input, hook="answer" in input))
    await async_scene.submit({"wait": True})


async def _training(scene: Scene) -> None:
    training = await Training.begin(scene.stage.operator, scene.stage.product, "tune-search")
    scene.job = await training.create(
        'echo "reads 4096 examples"', _LOSS, _CHECKPOINT, runtime={"checkpointing_config": {"enabled": True}}
    )
    await scene.job.until("COMPLETED")
    await (await training.create("exit 3")).until("FAILED")
    await training.create("sleep 7200")


async def _changes(scene: Scene) -> None:
    """Changes for the audit trail: of a group, a key that is revoked, a secret."""
    operator = scene.stage.operator
    id = scene.groups["support"]
    await operator.call("PATCH", f"/v1/gateway/groups/{id}", {"models": models(SLUGS[0], ("REQUEST", "MINUTE", 90))})
    created = await operator.call("POST", f"/v1/gateway/groups/{id}/api_keys", {"name": "old laptop"})
    await operator.call("DELETE", f"/v1/gateway/groups/{id}/api_keys/{created['prefix']}")
    await operator.call("POST", "/v1/secrets", {"name": "vendor", "value": "sk-upstream"})


async def _delivered(scene: Scene) -> bool:
    paths = [f"/v1/gateway/webhooks/{id}/deliveries" for id in scene.webhooks.values()]
    return all([(await scene.stage.operator.call("GET", path))["items"] for path in paths])
