"""The start of an attempt: a trainer claims the job, and each of its nodes' starters spends the environment token.

Secrets are opened for the one that spends the token, and never written anywhere.

See docs/reference/training.md#internal-api.
"""

import hashlib
import hmac
import logging
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from control.edges.sql import secret_rows
from control.edges.sql.store import Connection, Store, WriteTx
from control.edges.sql.training import cache_rows, job_rows, project_rows
from control.edges.sql.training.restore_rows import Loader, LoadRow, find_load, last_checkpoint
from control.errors import SecretUnreadableError
from control.records.training import JobRecord
from control.resources.training import job_states
from control.resources.training.errors import (
    CheckpointsSyncingError,
    EnvironmentTokenError,
    MissingCheckpointError,
    MissingSecretsError,
    OldTrainerError,
    TrainingJobNotFoundError,
)
from control.resources.uploads.artifacts import artifacts_of
from policy.sealing import SealedWithUnknownKeyError, unseal
from policy.training.job_spec import JobSpec, SecretRef
from policy.training.reports import ABILITIES, CACHES, FETCHES, LOADS, UNPACKS, Claimed, Load, Restore
from policy.training.statuses import ENDED, SYNCING
from policy.training.weights import Weights

_TOKEN_BYTES = 32
_MOST_RECREATIONS = 100
"""The most jobs on the way back to a checkpoint, from a job to the one that it repeats."""
LOADED = "rank-0"
"""The directory of loaded checkpoints, below the one that a job is told, as the original has it."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedEnvironment:
    """A job's own variables, the values of its secrets, which its output must not show, and its weights."""

    variables: dict[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    weights: tuple[Weights, ...] = field(default=(), repr=False)


async def claim(store: Store, job_id: str, attempt: int, abilities: Collection[str] = ABILITIES) -> Claimed:
    """Begin the attempt after `attempt`. A ConflictError if the job does not wait for it, or must wait longer.

    `abilities`: those of the trainer. One of an older version has none.
    """

    async def work(tx: WriteTx) -> Claimed:
        job = await job_rows.lock_job(tx, job_id)
        if job is None:
            raise TrainingJobNotFoundError
        token = f"{job_id}.{secrets.token_urlsafe(_TOKEN_BYTES)}"
        after = job_states.claimed(job, attempt, _digest(token), tx.now_ms)
        restore = await find_restore(tx.conn, job)
        spec = await job_rows.get_spec(tx.conn, job_id)
        needs = {LOADS: spec.load, CACHES: spec.cache, UNPACKS: spec.artifacts, FETCHES: spec.weights}
        if any(needed and ability not in abilities for ability, needed in needs.items()):
            raise OldTrainerError
        if spec.cache is not None:
            await cache_rows.put_cache(tx, job.project_id)
        loads = await _loads(tx.conn, job, spec)
        await job_rows.update_job(tx, job, after)
        project = await project_rows.project_names(tx.conn, [job.project_id])
        names = (job.project_id, project[job.project_id], job.name or "")
        artifacts = await artifacts_of(tx.conn, job_id, spec.artifacts)
        spec = replace(spec, weights=())  # a source may hold a signature: the token gives them, and no file has them
        return Claimed(job_id, after.attempt, spec, token, restore, job.workspace_id, *names, loads, artifacts)

    return await store.transact(work)


async def open_environment(store: Store, keys: Sequence[bytes], token: str) -> OpenedEnvironment:
    """Spend a token. EnvironmentTokenError if it is not the job's present one; MissingSecretsError spends nothing."""
    job_id = token.partition(".")[0]
    async with store.read() as conn:  # a guess must cost no write
        _check(await job_rows.find_job_anywhere(conn, job_id), token)

    async def work(tx: WriteTx) -> OpenedEnvironment:
        job = _check(await job_rows.lock_job(tx, job_id), token)
        opened = await _open(tx.conn, keys, job)
        await job_rows.update_job(tx, job, replace(job, environment_digest=None))
        return opened

    return await store.transact(work)


def _check(job: JobRecord | None, token: str) -> JobRecord:
    digest = job.environment_digest if job else None
    if job is None or digest is None or not hmac.compare_digest(digest, _digest(token)):
        raise EnvironmentTokenError
    return job


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


async def _open(conn: Connection, keys: Sequence[bytes], job: JobRecord) -> OpenedEnvironment:
    spec = await job_rows.get_spec(conn, job.id)
    await _check_loads(conn, job, spec)
    environment = spec.environment
    secret_names = {name: value.name for name, value in environment.items() if isinstance(value, SecretRef)}
    sealed = {one.name: one for one in await secret_rows.find_named(conn, job.workspace_id, spec.secret_names)}
    missing = sorted(spec.secret_names - sealed.keys())
    if missing:
        raise MissingSecretsError(missing)
    opened = dict[str, str]()
    for secret in sealed.values():
        try:
            opened[secret.name] = unseal(keys, secret.id, secret.ciphertext)
        except SealedWithUnknownKeyError:
            log.error("Training job %s cannot start: its secret %r cannot be opened. %s", job.id, secret.name, _REMEDY)
            raise SecretUnreadableError from None
    plain = {name: value for name, value in environment.items() if isinstance(value, str)}
    variables = plain | {name: opened[secret] for name, secret in secret_names.items()}
    weights = tuple(
        Weights(one.source, one.location, None if one.secret is None else opened[one.secret], one.patterns)
        for one in spec.weights
    )
    return OpenedEnvironment(variables, tuple(sorted(set(opened.values()))), weights)


_REMEDY = "Add the key that sealed it to TOLLGATE_SECRET_KEY."


async def find_restore(conn: Connection, job: JobRecord) -> Restore | None:
    """The last checkpoint of the job, else of the job that it repeats, and so on. None if there is none.

    CheckpointsSyncingError while one is on its way into the store. Deleted jobs have none.
    """
    for _ in range(_MOST_RECREATIONS):
        if job.checkpoint_sync_status == SYNCING:
            raise CheckpointsSyncingError
        checkpoint = await last_checkpoint(conn, job.id)
        earlier = await job_rows.find_job_anywhere(conn, job.recreated_from) if job.recreated_from else None
        if checkpoint is not None or earlier is None or earlier.is_deleted:
            return checkpoint
        job = earlier
    return None


async def _loads(conn: Connection, job: JobRecord, spec: JobSpec) -> tuple[Load, ...]:
    """The checkpoints that the job loads, and where each goes. One that does not exist any more is missing.

    CheckpointsSyncingError while one is on its way into the store and there is none to load instead.
    """
    loader = Loader(job.workspace_id, job.project_id, job.id)
    loads = dict[str, Load]()
    for ref in spec.load.refs if spec.load else ():
        newest = await find_load(conn, loader, ref)
        if newest is not None and newest.checkpoint is None and _is_awaited(newest):
            raise CheckpointsSyncingError
        row = await find_load(conn, loader, ref, in_store=True)
        if row is None and newest is not None and newest.sync_status == SYNCING:
            raise CheckpointsSyncingError
        if row is not None and row.checkpoint is not None:
            _place(loads, row.job_id, row.checkpoint)
    return tuple(loads.values())


def _place(loads: dict[str, Load], job_id: str, checkpoint: Restore) -> None:
    """Add a checkpoint once, and beside one of another job that has its name."""
    if any(load.checkpoint == checkpoint for load in loads.values()):
        return
    directory = LOADED if f"{LOADED}/{checkpoint.name}" not in loads else f"{LOADED}/{job_id}"
    loads[f"{directory}/{checkpoint.name}"] = Load(directory, checkpoint)


def _is_awaited(row: LoadRow) -> bool:
    """Return whether it is the last one of a job that has ended, and soon in the store. One that runs writes more."""
    return row.job_status in ENDED and row.sync_status == SYNCING


async def _check_loads(conn: Connection, job: JobRecord, spec: JobSpec) -> None:
    """MissingCheckpointError if a checkpoint was deleted since the job was made."""
    loader = Loader(job.workspace_id, job.project_id, job.id)
    for ref in spec.load.refs if spec.load else ():
        if await find_load(conn, loader, ref, in_store=True) is None:
            raise MissingCheckpointError(str(ref))
