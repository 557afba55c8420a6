"""`/v1/async/webhook_secret`: the secret that signs the results of asynchronous requests.

See docs/reference/management-api.md#signing-secret.
"""

from pydantic import Field

from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import ResponseV1
from control.resources.platform import signing_secrets
from policy.keys.permissions import Permission


class WebhookSecretsResponseV1(ResponseV1):
    """The secrets that sign the results of asynchronous requests now, newest first."""

    secrets: list[str] = Field(
        min_length=1,
        max_length=2,
        description="In the form that the `standardwebhooks` libraries take. Two for one day after a rotation: every "
        "result is then signed with both.",
        examples=[["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="]],
    )


async def _get(request: ApiRequest) -> WebhookSecretsResponseV1:
    keys = request.dependencies.settings.secret_keys
    texts = await signing_secrets.read_secrets(request.store, keys, request.workspace_id)
    return WebhookSecretsResponseV1(secrets=texts)


async def _post(request: ApiRequest) -> WebhookSecretsResponseV1:
    keys = request.dependencies.settings.secret_keys
    texts = await signing_secrets.rotate(request.store, keys, request.workspace_id)
    return WebhookSecretsResponseV1(secrets=texts)


_PATH = "/v1/async/webhook_secret"
_ANSWER = WebhookSecretsResponseV1
OPERATIONS = (
    Operation("GET", _PATH, _get, "Get the signing secret of asynchronous results", _ANSWER, needs=Permission.TRUST),
    Operation(
        *("POST", _PATH, _post, "Rotate the signing secret of asynchronous results", _ANSWER),
        needs=Permission.TRUST,
        creates=True,
    ),
)
