"""`…/jobs/{training_job_id}/auth_codes` and `…/interactive_session`: codes of a job's shells, and their times.

See docs/reference/training.md#interactive-sessions.
"""

from typing import Literal

from pydantic import Field

from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import RequestV1, ResponseV1, TimeText
from control.api.training.job_requests import TimeoutMinutes, Trigger
from control.api.training.jobs import job_ref
from control.records.times import optional_time_text, time_text
from control.resources.training import jobs, session_changes, sessions
from control.resources.training.errors import NoSshError
from control.resources.training.session_changes import ChangedSessions, SessionChange
from control.resources.training.sessions import AuthCode
from policy.keys.permissions import Permission


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


class PatchInteractiveSessionRequestV1(RequestV1):
    """New settings of a job's sessions. Null or left out: as it is."""

    trigger: Trigger | None = Field(None, description="That of `on_startup` cannot be changed.")
    timeout_minutes: TimeoutMinutes | None = Field(
        None, description="Minutes more for active `on_startup` sessions; otherwise from now on, and of later sessions."
    )


class InteractiveSessionV1(ResponseV1):
    """An active session. `auth_code` is in `auth_codes`."""

    id: str
    trigger: str
    timeout_minutes: int
    session_provider: Literal["browser"]
    auth_provider: Literal["auth_code"]
    pod_name: str = Field(description="The node, as `g00r0`.")
    expires_at: TimeText
    tunnel_name: None
    auth_code: None
    auth_url: str
    auth_code_generated_at: TimeText | None
    authenticated_at: None
    working_directory: str | None


class PatchedInteractiveSessionV1(ResponseV1):
    """A session after a change, and the change for people."""

    interactive_session: InteractiveSessionV1
    message: str


class SessionSettingsV1(ResponseV1):
    """The settings of a job's sessions."""

    trigger: str
    timeout_minutes: int


class PatchedSessionSettingsV1(ResponseV1):
    """The settings of a job's sessions after a change, and the change for people."""

    interactive_session: SessionSettingsV1
    message: str


class SignedSshCertificateV1(ResponseV1):
    """A certificate for SSH, which Tollgate has not."""

    certificate: str


async def _get_auth_codes(request: ApiRequest) -> AuthCodesResponseV1:
    keys = request.dependencies.settings.secret_keys
    codes = await sessions.read_auth_codes(request.store, keys, job_ref(request))
    return AuthCodesResponseV1(auth_codes=[_response(code, request.origin) for code in codes])


async def _post_interactive_session(request: ApiRequest) -> AuthCodesResponseV1:
    await sessions.begin_on_demand(request.store, job_ref(request))
    return await _get_auth_codes(request)


async def _patch_settings(request: ApiRequest) -> PatchedSessionSettingsV1:
    changed = await _change(request)
    settings = SessionSettingsV1(trigger=changed.settings.trigger, timeout_minutes=changed.settings.timeout_minutes)
    return PatchedSessionSettingsV1(interactive_session=settings, message=_message(changed))


async def _patch_session(request: ApiRequest) -> PatchedInteractiveSessionV1:
    changed = await _change(request, request.path["session_id"])
    (record,) = changed.active
    session = InteractiveSessionV1(
        id=record.id,
        trigger=changed.settings.trigger,
        timeout_minutes=changed.settings.timeout_minutes,
        session_provider="browser",
        auth_provider="auth_code",
        pod_name=f"g00r{record.rank}",
        expires_at=time_text(record.ends_at_ms),
        tunnel_name=None,
        auth_code=None,
        auth_url=f"{request.origin}/sessions/{record.id}",
        auth_code_generated_at=optional_time_text(record.code_generated_at_ms),
        authenticated_at=None,
        working_directory=changed.working_directory,
    )
    return PatchedInteractiveSessionV1(interactive_session=session, message=_message(changed))


async def _change(request: ApiRequest, session_id: str | None = None) -> ChangedSessions:
    body = request.body_as(PatchInteractiveSessionRequestV1)
    change = SessionChange(body.trigger, body.timeout_minutes, session_id)
    return await session_changes.change_sessions(request.store, job_ref(request), change)


def _message(changed: ChangedSessions) -> str:
    if not changed.has_changed:
        return "Nothing was changed."
    ends = max((record.ends_at_ms for record in changed.active), default=None)
    settings = f"trigger {changed.settings.trigger}, {changed.settings.timeout_minutes} minutes"
    return f"Updated: {settings}." if ends is None else f"Updated: {settings}; active until {time_text(ends)}."


async def _post_ssh_sign(request: ApiRequest) -> SignedSshCertificateV1:
    await jobs.read_job(request.store, job_ref(request))
    raise NoSshError


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
        needs=Permission.TRUST,
    ),
    Operation(
        *("POST", f"{_PATH}/interactive_session", _post_interactive_session),
        *("Begin interactive sessions on a training job", AuthCodesResponseV1),
        errors=(404, 409),
        needs=Permission.TRUST,
        creates=True,
    ),
    Operation(
        *("PATCH", f"{_PATH}/interactive_session", _patch_settings),
        *("Change the interactive sessions of a training job", PatchedSessionSettingsV1),
        body=PatchInteractiveSessionRequestV1,
        errors=(400, 404, 409),
        needs=Permission.WORKLOADS,
    ),
    Operation(
        *("PATCH", f"{_PATH}/interactive_sessions/{{session_id}}", _patch_session),
        *("Change an interactive session of a training job", PatchedInteractiveSessionV1),
        body=PatchInteractiveSessionRequestV1,
        errors=(400, 404, 409),
        needs=Permission.WORKLOADS,
    ),
    Operation(
        *("POST", f"{_PATH}/ssh/sign", _post_ssh_sign, "SSH to a node of a training job", SignedSshCertificateV1),
        errors=(404, 409),
        needs=Permission.TRUST,
    ),
)
