"""The whole product with the scaler of deploy/kubernetes/scaled-model, a scripted Kubernetes and a model server."""

import asyncio
import sys
from pathlib import Path

from runtime.child_process import tie_to_parent
from tests.contracts.launcher.scaler_process import ScalerProcess
from tests.contracts.launcher.scripted_kubernetes import ScriptedKubernetes
from tests.journeys.conftest import Stage
from tests.ports import own_port


async def test_cold_call_scales_a_deployment_from_zero_and_idleness_scales_it_back(
    stage: Stage, tmp_path: Path
) -> None:
    operator = stage.operator
    port = own_port()
    model = (await operator.call("POST", "/v1/models", {"name": stage.name}))["id"]
    deployment = (await operator.call("POST", f"/v1/models/{model}/deployments", {"name": "d"}))["id"]
    await operator.call("PUT", f"/v1/models/{model}/environments/production", {"deployment_id": deployment})
    await operator.endpoint(stage.slug, model)
    key = await operator.key(await operator.group(stage.name, [{"slug": stage.slug}]))
    async with ScriptedKubernetes(tmp_path) as kubernetes:
        kubernetes.pod_address = "127.0.0.1"
        scaler = ScalerProcess(stage.product.control, operator.api_key, (model, deployment), kubernetes)
        scaler.environment["POD_PORT"] = str(port)
        await scaler.start()
        calling = asyncio.create_task(stage.ask(key))

        async def is_scaled_up() -> bool:
            return kubernetes.replicas == 1

        async def is_scaled_to_zero() -> bool:
            return kubernetes.replicas == 0

        await stage.until(is_scaled_up, f"a pod is wanted: {scaler.output}")
        words = (sys.executable, "-m", "tests.model_server", "--port", str(port))
        server = await asyncio.create_subprocess_exec(*words, preexec_fn=tie_to_parent())
        try:
            kubernetes.become_ready()
            assert (await calling).choices[0].message.content == f"pid {server.pid}"
            await stage.until(is_scaled_to_zero, "it is scaled to zero")
            deployment_state = await operator.call("GET", f"/v1/models/{model}/deployments/{deployment}")
            assert (deployment_state["status"], deployment_state["replicas"]) == ("SCALED_TO_ZERO", [])
        finally:
            server.kill()
            await server.wait()
            await scaler.stop()
