"""The schema of a job that is to be created: every bound, and the field that a refusal names.

See docs/reference/training.md#jobs.
"""

from typing import Any

import orjson
import pytest

from control.api.protocol.bodies import valid_body
from control.api.protocol.errors import ProblemError
from control.api.training.job_requests import CreateTrainingJobRequestV1
from control.resources.training.jobs import NewJob
from policy.training.job_spec import SecretRef
from tests.control.training import job_body

SECRET = {"type": "SECRET", "name": "s"}


async def read(body: Any) -> NewJob:
    request = valid_body(orjson.dumps(body), CreateTrainingJobRequestV1)
    assert isinstance(request, CreateTrainingJobRequestV1)
    return request.training_job.new_job()


async def refused(body: Any) -> list[str]:
    with pytest.raises(ProblemError) as problem:
        await read(body)
    assert problem.value.status == 400
    return [detail.field for detail in problem.value.details]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"compute": None}, "compute"),
        ({"compute": {}}, "compute.cpu_count"),
        ({"runtime": None}, "runtime"),
        ({"user": "me"}, "user"),
        ({"name": ""}, "name"),
        ({"name": "a" * 256}, "name"),
        ({"priority": 1_000_001}, "priority"),
        ({"priority": -1_000_001}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"availability_model": "cheap"}, "availability_model"),
        ({"image": {"base_image": "a b"}}, "image.base_image"),
        ({"image": {"base_image": "a" * 513}}, "image.base_image"),
        ({"image": {"docker_auth": {}}}, "image.docker_auth"),
        ({"node_count": 0}, "compute.node_count"),
        ({"node_count": 1001}, "compute.node_count"),
        ({"cpu_count": 0}, "compute.cpu_count"),
        ({"cpu_count": 1.5}, "compute.cpu_count"),
        ({"cpu_count": 100_001}, "compute.cpu_count"),
        ({"memory": "2GB"}, "compute.memory"),
        ({"memory": "0Gi"}, "compute.memory"),
        ({"memory": "2 Gi"}, "compute.memory"),
        ({"memory": "2Gi\n"}, "compute.memory"),
        ({"memory": 2048}, "compute.memory"),
        ({"memory": "99999999Gi"}, "compute.memory"),
        ({"accelerator": "H100"}, "compute.accelerator"),
        ({"accelerator": {"accelerator": "H100", "count": 0}}, "compute.accelerator.count"),
        ({"accelerator": {"accelerator": "H 100"}}, "compute.accelerator.accelerator"),
        ({"start_commands": "echo"}, "runtime.start_commands"),
        ({"start_commands": [""]}, "runtime.start_commands.0"),
        ({"start_commands": ["ok", "a" * 65_537]}, "runtime.start_commands.1"),
        ({"start_commands": ["é" * 40_000]}, "runtime.start_commands.0"),
        ({"start_commands": ["ok"] * 101}, "runtime.start_commands"),
        ({"working_directory": "/etc"}, "runtime.working_directory"),
        ({"working_directory": "a/../../b"}, "runtime.working_directory"),
        ({"working_directory": ".."}, "runtime.working_directory"),
        ({"working_directory": ""}, "runtime.working_directory"),
        ({"working_directory": "a\nb"}, "runtime.working_directory"),
        ({"working_directory": "a" * 256}, "runtime.working_directory"),
        ({"working_directory": "é/" * 512}, "runtime.working_directory"),
        ({"checkpointing_config": {"enabled": "yes"}}, "runtime.checkpointing_config.enabled"),
        ({"checkpointing_config": {"checkpoint_path": "../x"}}, "runtime.checkpointing_config.checkpoint_path"),
        ({"checkpointing_config": {"checkpoint_path": "/x"}}, "runtime.checkpointing_config.checkpoint_path"),
        ({"checkpointing_config": {"checkpoint_path": "."}}, "runtime.checkpointing_config.checkpoint_path"),
        ({"checkpointing_config": {"checkpoint_path": "./node-12/x"}}, "runtime.checkpointing_config.checkpoint_path"),
        ({"checkpointing_config": {"checkpoint_path": "node-0"}}, "runtime.checkpointing_config.checkpoint_path"),
        ({"environment_variables": {"1A": "x"}}, "runtime.environment_variables.1A"),
        ({"environment_variables": {"A-B": "x"}}, "runtime.environment_variables.A-B"),
        ({"environment_variables": {"A\n": "x"}}, "runtime.environment_variables.A\n"),
        ({"environment_variables": {"TOLLGATE_JOB_ID": "x"}}, "runtime.environment_variables.TOLLGATE_JOB_ID"),
        ({"environment_variables": {"A": 1}}, "runtime.environment_variables.A"),
        ({"environment_variables": {"A": "x" * 65_537}}, "runtime.environment_variables.A"),
        ({"environment_variables": {"A": SECRET | {"type": "secret"}}}, "runtime.environment_variables.A"),
        ({"environment_variables": {"A": SECRET | {"value": "x"}}}, "runtime.environment_variables.A"),
        ({"interactive_session": {"trigger": "always", "timeout_minutes": 1}}, "interactive_session.trigger"),
        ({"interactive_session": {"trigger": "on_demand"}}, "interactive_session.timeout_minutes"),
        (
            {"interactive_session": {"trigger": "on_demand", "timeout_minutes": 0}},
            "interactive_session.timeout_minutes",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_broken_bound_names_its_field(changes: dict[str, Any], field: str) -> None:
    assert await refused(job_body(**changes)) == [f"training_job.{field}"]


async def test_the_largest_values_are_accepted() -> None:
    job = await read(
        job_body(
            **{"name": "a" * 255, "priority": 1_000_000, "node_count": 1000, "cpu_count": 100_000.0, "memory": "3Ti"},
            start_commands=["x"] * 99 + ["é" * 32_768],
            environment_variables={f"_a{number}": "x" for number in range(98)} | {"B": "", "C": SECRET},
        )
    )
    assert (job.spec.resources.millicpu, job.spec.resources.memory_mib) == (100_000_000, 3 * 2**20)
    assert len(job.spec.environment) == 100


async def test_the_directory_of_a_node_is_told_from_one_that_looks_alike() -> None:
    for path in ("control", "node-x", "a/node-0", "node-0b"):
        config = {"enabled": True, "checkpoint_path": path}
        assert (await read(job_body(checkpointing_config=config))).spec.checkpoint_path == path


async def test_checkpoints_that_are_not_enabled_have_no_path() -> None:
    config = {"enabled": False, "checkpoint_path": "x"}
    assert (await read(job_body(checkpointing_config=config))).spec.checkpoint_path is None


@pytest.mark.parametrize("reference", [{"name": "s"}, {"name": "s", "type": None}, SECRET])
async def test_a_secret_reference_may_leave_out_its_type(reference: dict[str, Any]) -> None:
    job = await read(job_body(environment_variables={"TOKEN": reference}))
    assert job.spec.environment == {"TOKEN": SecretRef("s")}
