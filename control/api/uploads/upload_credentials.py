"""`GET /v1/blobs/credentials/{blob_type}`: keys for the upload of one archive (docs/reference/training.md#uploads)."""

from pydantic import Field

from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import ResponseV1, TimeText
from control.records.times import time_text
from control.resources.training.errors import BlobTypeNotFoundError
from control.resources.uploads import access
from control.resources.uploads.grants import BUCKET, REGION
from policy.keys.permissions import Permission

_TRAIN = "train"


class BlobCredentialsV1(ResponseV1):
    """The arguments of an S3 client. The keys write one upload, for an hour."""

    aws_access_key_id: str
    aws_secret_access_key: str
    aws_session_token: str
    endpoint_url: str
    region_name: str


class BlobCredentialsResponseV1(ResponseV1):
    """The place of an upload, and the keys for it."""

    s3_bucket: str
    s3_key: str = Field(description="The upload's name, also for `runtime.artifacts` of a job.")
    creds: BlobCredentialsV1
    endpoint_url: str
    region_name: str
    expires_at: TimeText


async def _get(request: ApiRequest) -> BlobCredentialsResponseV1:
    if request.path["blob_type"] != _TRAIN:
        raise BlobTypeNotFoundError
    request.dependencies.checkpoint_store.check()
    grant = await access.grant_upload(request.store, request.workspace_id)
    place = {"endpoint_url": request.origin, "region_name": REGION}
    creds = BlobCredentialsV1(
        aws_access_key_id=grant.access_key_id,
        aws_secret_access_key=grant.secret_access_key,
        aws_session_token=request.dependencies.grants.seal(grant),
        **place,
    )
    expires_at = time_text(grant.expires_at_ms)
    return BlobCredentialsResponseV1(s3_bucket=BUCKET, s3_key=grant.key, creds=creds, expires_at=expires_at, **place)


OPERATIONS = (
    Operation(
        *("GET", "/v1/blobs/credentials/{blob_type}", _get, "Get keys for an upload", BlobCredentialsResponseV1),
        errors=(404,),
        needs=Permission.WORKLOADS,
    ),
)
