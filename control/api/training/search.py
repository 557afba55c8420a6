"""`/v1/training_jobs/search`: training jobs of all projects (docs/reference/training.md#search)."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from control.api.protocol.encoding import Array, Encoded, Pieces, encode_object
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import IdText, RequestV1
from control.api.training.job_schemas import Status, TrainingJobsResponseV1, job_response
from control.long_work import beside
from control.records.training import JobSearch
from control.resources.training import jobs
from control.resources.training.jobs import JobSummary
from policy.keys.permissions import Permission


class TrainingJobOrderV1(RequestV1):
    """The field by which jobs are ordered, and the direction."""

    field: Literal["created_at"]
    order: Literal["asc", "desc"] | None = "desc"


class SearchTrainingJobsRequestV1(RequestV1):
    """The training jobs to find. A null, absent or empty member is no filter."""

    project_id: IdText | None = None
    job_id: IdText | None = None
    statuses: Annotated[list[Status], Field(max_length=100)] | None = None
    order_by: Annotated[list[TrainingJobOrderV1], Field(max_length=10)] | None = Field(
        None, description="The newest first by default."
    )

    @property
    def newest_first(self) -> bool:
        """The first order decides: there is only one field to order by."""
        return not self.order_by or self.order_by[0].order != "asc"


async def _search(request: ApiRequest) -> Encoded:
    body = request.body_as(SearchTrainingJobsRequestV1)
    statuses = tuple(body.statuses or ())
    search = JobSearch(request.workspace_id, body.project_id, body.job_id, statuses, body.newest_first)
    summaries = await jobs.search_jobs(request.store, search)
    return Encoded(await beside(request.workspace_id, len(summaries), partial(_encoded, summaries)))


def _encoded(summaries: Sequence[JobSummary]) -> Pieces:
    return encode_object(
        {"training_jobs": Array([(job_response(job).model_dump_json().encode(),) for job in summaries])}
    )


OPERATIONS = (
    Operation(
        *("POST", "/v1/training_jobs/search", _search, "Search training jobs", TrainingJobsResponseV1),
        body=SearchTrainingJobsRequestV1,
        needs=Permission.READ,
    ),
)
