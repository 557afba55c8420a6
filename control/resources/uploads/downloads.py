"""Links to the artifacts of jobs: whoever has one may read that one archive for an hour, without credentials.

A link names a job and one of its uploads, sealed. It opens for as long as the job is not deleted.

See docs/reference/training.md#uploads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from control.edges.sql.store import Store, now_ms
from control.edges.sql.training import job_rows
from control.records.ids import new_nonce
from control.records.training import JobRef
from control.resources.training.errors import ArtifactNotFoundError, LinkExpiredError, NoArtifactsError
from control.resources.training.jobs import find_job
from control.resources.uploads.artifacts import artifacts_of
from policy.sealing import TokenSealer
from policy.training.artifacts import Artifact

VALID_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class ArtifactLink:
    """The artifact that a link opens, and until when. `key`: its `s3_key`."""

    workspace_id: str
    job_id: str
    key: str
    expires_at_ms: int


class ArtifactLinkSealer:
    """Makes the tokens of links, and reads them."""

    def __init__(self, secret_keys: Sequence[bytes]) -> None:
        self._tokens = TokenSealer(secret_keys, "tollgate artifact link")

    def seal(self, link: ArtifactLink) -> str:
        return self._tokens.seal([link.workspace_id, link.job_id, link.key, link.expires_at_ms], new_nonce())

    def open(self, token: str, now_ms: int) -> ArtifactLink:
        """Open a token. Raises ArtifactNotFoundError unless it was sealed here, and LinkExpiredError."""
        values = self._tokens.open(token)
        if values is None:
            raise ArtifactNotFoundError
        link = ArtifactLink(*values)
        if now_ms >= link.expires_at_ms:
            raise LinkExpiredError("The link has expired; ask for the job's download again")
        return link


async def list_links(store: Store, ref: JobRef) -> list[ArtifactLink]:
    """Links to a job's artifacts, in their order. NoArtifactsError if it has none."""
    async with store.read() as conn:
        await find_job(conn, ref)
        keys = (await job_rows.get_spec(conn, ref.job_id)).artifacts
    if not keys:
        raise NoArtifactsError
    return [ArtifactLink(ref.workspace_id, ref.job_id, key, now_ms() + VALID_MS) for key in keys]


async def find_artifact(store: Store, links: ArtifactLinkSealer, token: str) -> tuple[ArtifactLink, Artifact]:
    """Find the artifact that a link opens. LinkExpiredError; ArtifactNotFoundError if its job is gone."""
    link = links.open(token, now_ms())
    async with store.read() as conn:
        job = await job_rows.find_job_anywhere(conn, link.job_id)
        if job is None or job.is_deleted or job.workspace_id != link.workspace_id:
            raise ArtifactNotFoundError
        (artifact,) = await artifacts_of(conn, link.job_id, [link.key])
        return link, artifact
