"""Refusal of jobs that can never run: for want of machines, of sessions, of a secret, of something to load.

See docs/reference/training.md#jobs.
"""

from collections.abc import Sequence
from typing import Protocol

from control.edges.sql import secret_rows
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.training.restore_rows import Loader, find_load
from control.errors import InvalidFieldError
from control.records.training import BackendRecord, ProjectRecord
from policy.hosts import HostRuleError
from policy.training.job_spec import JobSpec, SecretRef
from policy.training.placement import unfit_field
from policy.training.resources import Host, NodeResources
from policy.training.weights import UrlSource, parse_source

_JOB = "training_job"
_HAS_CACHES = "local"
"""The one backend whose nodes are always on one machine."""


def check_fits(backend: BackendRecord, spec: JobSpec) -> None:
    """Raise InvalidFieldError for a job that can never fit, and for a cache or session that the backend cannot have."""
    field = unfit_field(backend.hosts, spec.node_count, spec.resources)
    if field is not None:
        raise InvalidFieldError(f"{_JOB}.compute.{field}", _never_fits(field, backend.hosts, spec.resources))
    if spec.cache is not None and backend.backend != _HAS_CACHES:
        message = f"the training backend ({backend.backend}) keeps no caches; leave cache_config out"
        raise InvalidFieldError(f"{_JOB}.runtime.cache_config.enabled", message)
    if spec.session is not None and not backend.has_sessions:
        message = f"the training backend ({backend.backend}) has no interactive sessions; leave the field out"
        raise InvalidFieldError(f"{_JOB}.interactive_session", message)


class DownloadUrls(Protocol):
    """The rules for URLs of files for jobs."""

    async def check_download_url(self, url: str, field: str) -> None:
        """HostRuleError, which names the field."""
        ...


async def check_sources(spec: JobSpec, urls: DownloadUrls) -> None:
    """Raise InvalidFieldError for weights whose URL may not be called. Call it before the transaction."""
    for place, weights in enumerate(spec.weights):
        source = parse_source(weights.source)
        field = f"{_JOB}.weights.{place}.source"
        if isinstance(source, UrlSource):
            try:
                await urls.check_download_url(source.url, field)
            except HostRuleError as error:
                raise InvalidFieldError(field, str(error)) from None


async def check_secrets(tx: WriteTx, workspace_id: str, spec: JobSpec) -> None:
    """Raise InvalidFieldError for a variable, or for weights, whose secret does not exist.

    Until the transaction ends, nobody deletes the other secrets.
    """
    variables = f"{_JOB}.runtime.environment_variables"
    secrets = {f"{variables}.{name}": one.name for name, one in spec.environment.items() if isinstance(one, SecretRef)}
    for place, weights in enumerate(spec.weights):
        if weights.secret is not None:
            secrets[f"{_JOB}.weights.{place}.auth_secret_name"] = weights.secret
    existing = await secret_rows.lock_existing(tx, workspace_id, spec.secret_names) if secrets else set()
    for field, secret in secrets.items():
        if secret not in existing:
            message = f"the workspace has no secret named {secret!r}; store it with POST /v1/secrets"
            raise InvalidFieldError(field, message)


async def check_loads(conn: Connection, project: ProjectRecord, spec: JobSpec) -> None:
    """Raise InvalidFieldError for a checkpoint to load that is neither in the store nor on its way there."""
    loader = Loader(project.workspace_id, project.id)
    for place, ref in enumerate(spec.load.refs if spec.load else ()):
        if await find_load(conn, loader, ref) is None:
            message = f"the workspace has no such checkpoint ({ref}); name one that the job's checkpoints list"
            raise InvalidFieldError(f"{_JOB}.runtime.load_checkpoint_config.checkpoints.{place}", message)


def _never_fits(field: str, hosts: Sequence[Host], resources: NodeResources) -> str:
    match field:
        case "cpu_count":
            most = max((host.millicpu for host in hosts), default=0) // 1000
            return f"no machine of the training backend has as many CPUs; the largest has {most}"
        case "memory":
            most = max((host.memory_mib for host in hosts), default=0)
            return f"no machine of the training backend has as much memory; the largest has {most}Mi"
        case "accelerator":
            most = max((host.gpus.get(resources.gpu_type or "", 0) for host in hosts), default=0)
            return f"no machine of the training backend has as many accelerators {resources.gpu_type}; one has {most}"
        case _:
            return "as many nodes of this size never fit on the training backend; ask for fewer or smaller nodes"
