"""The schema of a job that is to be created: every bound, and the field that a refusal names.

See docs/reference/training.md#jobs.
"""

from typing import Any

import orjson
import pytest

from control.api.protocol.bodies import valid_body
from control.api.protocol.errors import ProblemError
from control.api.training.job_requests import CreateTrainingJobRequestV1
from control.errors import InvalidFieldError
from control.resources.training.jobs import NewJob
from policy.training.job_spec import CacheSpec, JobSpec, LoadRef, LoadSpec, SecretRef, SessionSpec
from policy.training.resources import NodeResources
from policy.training.weights import FilePatterns, WeightsSpec
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
        ({"compute": 1}, "compute"),
        ({"runtime": []}, "runtime"),
        ({"workspace": {"root": "."}}, "workspace.root"),
        ({"enable_baseten_workdir": "yes"}, "enable_baseten_workdir"),
        ({"truss_user_env": "0.18"}, "truss_user_env"),
        ({"compute": {"availability_model": "cheap"}}, "compute.availability_model"),
        ({"checkpointing_config": {"volume_size_gib": 0}}, "runtime.checkpointing_config.volume_size_gib"),
        ({"user": "me"}, "user"),
        ({"name": ""}, "name"),
        ({"name": "a" * 256}, "name"),
        ({"priority": 1_000_001}, "priority"),
        ({"priority": -1_000_001}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"availability_model": "cheap"}, "availability_model"),
        ({"image": {"base_image": "a b"}}, "image.base_image"),
        ({"image": {"base_image": "a" * 513}}, "image.base_image"),
        ({"image": {"base_image": "python:3.12;id"}}, "image.base_image"),
        ({"image": {"base_image": "docker://python"}}, "image.base_image"),
        ({"image": {"base_image": "Python"}}, "image.base_image"),
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


# --- what the original's clients send


def pushed(**changes: Any) -> Any:
    """The body of a push with defaults, as `truss` 0.18 writes it. A change replaces a member, by its path."""
    job: Any = {
        "image": {"base_image": "python:3.11", "docker_auth": None},
        "compute": {
            "node_count": 1,
            "cpu_count": 1,
            "memory": "2Gi",
            "accelerator": None,
            "availability_model": "dedicated",
        },
        "runtime": {
            "start_commands": [],
            "environment_variables": {},
            "enable_cache": None,
            "checkpointing_config": {"enabled": False, "checkpoint_path": None, "volume_size_gib": None},
            "load_checkpoint_config": None,
            "cache_config": None,
            "artifacts": [],
        },
        "interactive_session": None,
        "name": None,
        "priority": None,
        "workspace": None,
        "weights": [],
        "enable_baseten_workdir": True,
        "truss_user_env": {
            "truss_client_version": "0.18.36",
            "python_version": "3.11.7",
            "pydantic_version": "2.14.4",
            "mypy_version": None,
            "git_info": None,
        },
    }
    for path, value in changes.items():
        *parents, name = path.split("__")
        part = job
        for parent in parents:
            part = part[parent]
        part[name] = value
    return {"training_job": job}


async def test_a_push_with_defaults_is_a_plain_job() -> None:
    job = await read(pushed())
    assert job == NewJob(JobSpec((), NodeResources(1000, 2048), base_image="python:3.11"), None, 0, "dedicated")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("workspace", {"workspace_root": "..", "external_dirs": ["../lib"], "exclude_dirs": ["data"]}),
        ("enable_baseten_workdir", False),
        ("truss_user_env", None),
        ("weights", None),
        ("compute", None),
        ("runtime", None),
        ("compute", {}),
        ("runtime", {}),
        ("runtime__load_checkpoint_config", {"enabled": False, "checkpoints": [{"job_id": "tj_1"}]}),
        ("runtime__cache_config", {"enabled": False, "enable_legacy_hf_mount": True, "require_cache_affinity": False}),
        ("runtime__enable_cache", False),
        ("runtime__checkpointing_config", {"enabled": False, "checkpoint_path": None, "volume_size_gib": 5}),
    ],
    ids=str,
)
async def test_a_member_that_asks_for_nothing_changes_nothing(path: str, value: Any) -> None:
    assert await read(pushed(**{path: value})) == await read(pushed())


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("image__docker_auth", {"auth_method": "AWS_IAM", "registry": "r"}, "leave docker_auth out"),
        ("interactive_session", {"session_provider": "ssh"}, "browser"),
        ("interactive_session", {"session_provider": "cursor"}, "browser"),
        ("interactive_session", {"auth_provider": "github"}, "auth_codes"),
        ("runtime__checkpointing_config", {"enabled": True, "checkpoint_path": "/mnt/ckpts"}, "BT_CHECKPOINT_DIR"),
        ("runtime__load_checkpoint_config", {"download_folder": "/workspace/loaded"}, "BT_LOAD_CHECKPOINT_DIR"),
        ("runtime__cache_config", {"enabled": True, "mount_base_path": "/workspace/.cache"}, "TOLLGATE_CACHE_DIR"),
        ("runtime__load_checkpoint_config", {"checkpoints": [{"typ": "loops_checkpoint"}]}, "Loops"),
        ("runtime__load_checkpoint_config", {"checkpoints": [{"typ": "baseten_named_checkpoint"}]}, "checkpoint_name"),
        (
            "runtime__load_checkpoint_config",
            {"checkpoints": [{"typ": "baseten_latest_checkpoint", "checkpoint_name": "c"}]},
            "baseten_named_checkpoint",
        ),
    ],
)
async def test_what_is_not_ours_is_refused_with_what_to_do(path: str, value: Any, word: str) -> None:
    with pytest.raises(ProblemError) as problem:
        await read(pushed(**{path: value}))
    (detail,) = problem.value.details
    assert detail.field.startswith(f"training_job.{path.replace('__', '.')}")
    assert word in detail.message


async def test_a_session_of_the_client_has_its_defaults() -> None:
    client = {"session_provider": "vs_code", "auth_provider": "microsoft"}
    whole = client | {"trigger": "on_demand", "timeout_minutes": 480}
    for session in ({}, client, whole):
        assert (await read(pushed(interactive_session=session))).spec.session == SessionSpec("on_demand", 480)


async def test_the_availability_model_is_read_in_both_places() -> None:
    assert (await read(pushed(compute__availability_model="spot"))).availability_model == "spot"
    assert (
        await read(pushed(compute__availability_model=None, availability_model="spot"))
    ).availability_model == "spot"
    assert (await read(pushed(compute__availability_model="spot", availability_model="spot"))).availability_model == (
        "spot"
    )
    with pytest.raises(InvalidFieldError) as refused:
        await read(pushed(availability_model="spot"))
    assert refused.value.field == "training_job.compute.availability_model"


async def test_the_volume_bounds_the_checkpoints_of_a_job_that_has_some() -> None:
    config = {"enabled": True, "checkpoint_path": None, "volume_size_gib": 5}
    assert (await read(pushed(runtime__checkpointing_config=config))).spec.checkpoint_max_gib == 5


LOADING = {
    "enabled": True,
    "checkpoints": [
        {"typ": "baseten_named_checkpoint", "checkpoint_name": "step-1", "job_id": "tj_1"},
        {"typ": "baseten_latest_checkpoint", "job_id": None, "project_name": "llama"},
        {"typ": "baseten_latest_checkpoint", "job_id": None, "project_name": None},
    ],
    "download_folder": "/tmp/loaded_checkpoints",
}


async def test_checkpoints_to_load_are_read_as_the_client_writes_them() -> None:
    refs = (LoadRef("tj_1", None, "step-1"), LoadRef(None, "llama"), LoadRef())
    assert (await read(pushed(runtime__load_checkpoint_config=LOADING))).spec.load == LoadSpec(refs)
    untyped = {"enabled": True, "checkpoints": [{"checkpoint_name": "step-1", "job_id": "tj_1"}]}
    assert (await read(pushed(runtime__load_checkpoint_config=untyped))).spec.load == LoadSpec(refs[:1])
    shortest = {"enabled": True, "download_folder": "./in/"}
    assert (await read(pushed(runtime__load_checkpoint_config=shortest))).spec.load == LoadSpec((LoadRef(),), "in")


@pytest.mark.parametrize("folder", ["checkpoints", "checkpoints/in", "out", "out/ckpt/in"])
async def test_loaded_checkpoints_are_never_taken_for_the_jobs_own(folder: str) -> None:
    path = "out/ckpt" if folder.startswith("out") else None
    changes = {
        "runtime__checkpointing_config": {"enabled": True, "checkpoint_path": path},
        "runtime__load_checkpoint_config": LOADING | {"download_folder": folder},
    }
    with pytest.raises(InvalidFieldError) as refused:
        await read(pushed(**changes))
    assert refused.value.field == "training_job.runtime.load_checkpoint_config.download_folder"


async def test_a_cache_is_read_as_the_clients_write_it() -> None:
    config = {"enabled": True, "require_cache_affinity": True, "mount_base_path": "/root/.cache"}
    for is_hf_home in (False, True):
        changes = {"runtime__cache_config": config | {"enable_legacy_hf_mount": is_hf_home}}
        assert (await read(pushed(**changes))).spec.cache == CacheSpec(is_hf_home)
    assert (await read(pushed(runtime__enable_cache=True))).spec.cache == CacheSpec(is_hf_home=True)
    with pytest.raises(InvalidFieldError) as refused:
        await read(pushed(runtime__enable_cache=True, runtime__cache_config=config))
    assert refused.value.field == "training_job.runtime.enable_cache"


WEIGHTS: dict[str, Any] = {
    "source": "hf://Qwen/Qwen3-0.6B@main",
    "mount_location": "/app/models/Qwen/Qwen3-0.6B",
    "auth": None,
    "auth_secret_name": "hf_access_token",
    "allow_patterns": ["*.safetensors"],
    "ignore_patterns": None,
}
NO_ROLES = {
    "aws_oidc_role_arn": None,
    "aws_oidc_region": None,
    "gcp_oidc_service_account": None,
    "gcp_oidc_workload_id_provider": None,
    "aws_assume_role_arn": None,
    "aws_assume_role_region": None,
}


async def test_weights_are_read_as_the_client_writes_them() -> None:
    auth = NO_ROLES | {"auth_method": "CUSTOM_SECRET", "auth_secret_name": "keys"}
    inner = {"source": "s3://bucket/data/", "mount_location": "/app/data/", "auth": auth, "auth_secret_name": None}
    spec = (await read(pushed(weights=[WEIGHTS, inner]))).spec
    assert spec.weights == (
        WeightsSpec(
            WEIGHTS["source"], "app/models/Qwen/Qwen3-0.6B", "hf_access_token", FilePatterns(("*.safetensors",))
        ),
        WeightsSpec("s3://bucket/data/", "app/data", "keys"),
    )
    assert spec.secret_names == {"hf_access_token", "keys"}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"source": "azure://account/container/path"}, "start command"),
        ({"source": "cw://bucket/path"}, "start command"),
        ({"source": "http://example.com/m"}, "must begin with hf://, s3://, gs://, r2:// or https://"),
        ({"source": "file:///etc/passwd"}, "must begin with"),
        ({"source": "hf://"}, "hf://owner/model"),
        ({"source": "hf://datasets/a/b"}, "no datasets"),
        ({"source": "hf://a/../b"}, "hf://owner/model"),
        ({"source": "hf://a/b@../main"}, "revision"),
        ({"source": "s3://Bucket/a"}, "bucket"),
        ({"source": "r2://bucket/a"}, "r2://account_id.bucket/key"),
        ({"source": "s3://bucket/" + "k" * 1025}, "1024 bytes"),
        ({"mount_location": "models/llama"}, "absolute path"),
        ({"mount_location": "/"}, "below /"),
        ({"mount_location": "/models/../../x"}, "without .."),
        ({"auth": {"auth_method": "CUSTOM_SECRET"}, "auth_secret_name": None}, "needs an auth_secret_name"),
        ({"auth": {"auth_method": "CUSTOM_SECRET", "auth_secret_name": "b"}}, "once"),
        ({"auth": {"auth_method": "AWS_OIDC", "aws_oidc_region": "eu"}, "auth_secret_name": None}, "CUSTOM_SECRET"),
        ({"source": "https://example.com/m", "allow_patterns": ["*"]}, "one file"),
        ({"unknown": 1}, ""),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_weights_that_cannot_be_had_are_refused_with_what_to_do(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ProblemError) as problem:
        await read(pushed(weights=[WEIGHTS | {"mount_location": "/other"}, WEIGHTS | changes]))
    assert all(detail.field.startswith("training_job.weights.1") for detail in problem.value.details)
    assert word in problem.value.details[0].message


@pytest.mark.parametrize("location", ["/a/b", "/a", "/a/b/c", "//a/./b/"])
async def test_each_entry_of_weights_has_a_place_of_its_own(location: str) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        await read(pushed(weights=[WEIGHTS | {"mount_location": "/a/b"}, WEIGHTS | {"mount_location": location}]))
    assert refused.value.field == "training_job.weights.1.mount_location"
    beside = [WEIGHTS | {"mount_location": "/a/b"}, WEIGHTS | {"mount_location": "/a/bc"}]
    assert len((await read(pushed(weights=beside))).spec.weights) == 2


@pytest.mark.parametrize("path", ["weights", "weights/ckpt"])
async def test_weights_are_never_taken_for_checkpoints(path: str) -> None:
    config = {"enabled": True, "checkpoint_path": path}
    with pytest.raises(InvalidFieldError) as refused:
        await read(pushed(weights=[WEIGHTS], runtime__checkpointing_config=config))
    assert refused.value.field == "training_job.runtime.checkpointing_config.checkpoint_path"
    assert (await read(pushed(runtime__checkpointing_config=config))).spec.checkpoint_path == path


async def test_weights_have_at_most_twenty_entries() -> None:
    entries = [WEIGHTS | {"mount_location": f"/m/{number}"} for number in range(21)]
    with pytest.raises(ProblemError):
        await read(pushed(weights=entries))
    assert len((await read(pushed(weights=entries[:20]))).spec.weights) == 20
