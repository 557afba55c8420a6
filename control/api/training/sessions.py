"""`…/jobs/{training_job_id}/auth_codes` and `…/interactive_session`: the codes that open a job's shells.

See docs/reference/training.md#interactive-sessions.
"""

from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import ResponseV1, TimeText
from control.api.training.jobs import job_ref
from control.records.times import optional_time_text
from control.resources.training import sessions
from control.resources.training.sessions import AuthCode


class AuthCodeV1(ResponseV1):
    """The interactive session of one node, and the code that opens it at `auth_url`, once."""

    session_id: str
    replica_id: str
    auth_code: str
    auth_url: str
    generated_at: TimeText | None
    expires_at: TimeText | None
    tunnel_name: str | None
    working_directory: str | None


class AuthCodesResponseV1(ResponseV1):
    """One entry per node that has an active interactive session."""

    auth_codes: list[AuthCodeV1]


async def _get_auth_codes(request: ApiRequest) -> AuthCodesResponseV1:
    keys = request.dependencies.settings.secret_keys
    codes = await sessions.read_auth_codes(request.store, keys, job_ref(request))
    return AuthCodesResponseV1(auth_codes=[_response(code, request.origin) for code in codes])


async def _post_interactive_session(request: ApiRequest) -> AuthCodesResponseV1:
    await sessions.begin_on_demand(request.store, job_ref(request))
    return await _get_auth_codes(request)


def _response(code: AuthCode, origin: str) -> AuthCodeV1:
    session = code.session
    return AuthCodeV1(
        session_id=session.id,
        replica_id=f"g00r{session.rank}",
        auth_code=code.code,
        auth_url=f"{origin}/sessions/{session.id}",
        generated_at=optional_time_text(session.code_generated_at_ms),
        expires_at=optional_time_text(session.code_expires_at_ms),
        tunnel_name=None,
        working_directory=code.working_directory,
    )


_PATH = "/v1/training_projects/{training_project_id}/jobs/{training_job_id}"
OPERATIONS = (
    Operation(
        *("GET", f"{_PATH}/auth_codes", _get_auth_codes, "Get auth codes of a training job", AuthCodesResponseV1),
        errors=(404,),
        tag="Training",
    ),
    Operation(
        *("POST", f"{_PATH}/interactive_session", _post_interactive_session),
        *("Begin interactive sessions on a training job", AuthCodesResponseV1),
        errors=(404, 409),
        tag="Training",
    ),
)
