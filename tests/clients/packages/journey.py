"""Uses `tollgate_client` against a running product: resources, pages, errors, limits and a webhook's message."""

import asyncio
import base64
import json
import os
import sys
from pathlib import Path

from tollgate_client import (
    AsyncTollgate,
    Retries,
    Tollgate,
    TollgateError,
    WebhookVerificationError,
    iterate,
    iterate_async,
    verify_webhook,
    with_headers,
    with_headers_async,
)
from tollgate_client.models import (
    CreateFederatedKeyRequestV1,
    CreateGatewayGroupRequestV1,
    GatewayGroupV1,
    GroupMetadataRequestV1,
    GroupModelRequestV1,
)

GROUPS = 5
BURST = 150
"""More than the requests of a second."""
MOST_RETRIES_A_MINUTE = 10


def group_request(entity: str) -> CreateGatewayGroupRequestV1:
    models = [GroupModelRequestV1(slug=os.environ["SLUG"])]
    return CreateGatewayGroupRequestV1(metadata=GroupMetadataRequestV1(external_entity_id=entity), models=models)


def use(tollgate: Tollgate) -> None:
    groups = [tollgate.groups.create_group(body=group_request(f"py-{number}")) for number in range(GROUPS)]
    pages = list(iterate(tollgate.groups.list_groups, limit=2))
    assert {one.id for one in groups} <= {one.id for one in pages}
    assert len({one.id for one in pages}) == len(pages)
    group, headers = with_headers(tollgate.groups.get_group, groups[0].id)
    assert (group.id, bool(headers["x-request-id"])) == (groups[0].id, True)
    names: list[str] = [one.metadata.external_entity_id for one in pages]
    assert {f"py-{number}" for number in range(GROUPS)} <= {*names}
    key = tollgate.group_keys.create_group_key(groups[0].id, body=CreateFederatedKeyRequestV1(name="first"))
    assert key.api_key.startswith(f"{key.prefix}.")
    assert error_of(tollgate, "py-0").status == 409
    invalid = error_of(tollgate, "")
    assert (invalid.status, invalid.code) == (400, "INVALID_REQUEST")
    assert invalid.details[0]["field"] == "metadata.external_entity_id"
    assert "metadata.external_entity_id" in str(invalid)
    assert invalid.request_id
    refuse_when_limited(tollgate)


def error_of(tollgate: Tollgate, entity: str) -> TollgateError:
    try:
        tollgate.groups.create_group(body=group_request(entity))
    except TollgateError as error:
        return error
    raise AssertionError("it was created")


def refuse_when_limited(tollgate: Tollgate) -> None:
    """Exceed a limit of a minute, whose `retry_after` may be longer than these terms wait for."""
    codes = []
    for _ in range(MOST_RETRIES_A_MINUTE + 1):
        try:
            tollgate.deployments.retry_deployment("none", "none")
        except TollgateError as error:
            codes.append(error.code)
            last = error
    assert codes == [*["NOT_FOUND"] * MOST_RETRIES_A_MINUTE, "RATE_LIMITED"], codes
    assert last.status == 429
    assert last.retry_after_s is not None
    assert last.retry_after_s > 1


async def use_at_once(tollgate: AsyncTollgate) -> None:
    group: GatewayGroupV1 = await tollgate.groups.create_group(body=group_request("py-async"))
    assert group.id in {one.id async for one in iterate_async(tollgate.groups.list_groups, limit=2)}
    again, headers = await with_headers_async(tollgate.groups.get_group, group.id)
    assert (again.id, bool(headers["x-request-id"])) == (group.id, True)
    answers = await asyncio.gather(*(tollgate.groups.list_groups(limit=1) for _ in range(BURST)))
    assert len(answers) == BURST


def refuse_line_break(url: str, key: str) -> None:
    """Refuse a key that was read with its line, without showing it."""
    try:
        Tollgate(url, f"{key}\n")
    except ValueError as error:
        text = str(error)
    assert "line break" in text
    assert key not in text


def verify(message: dict[str, str]) -> None:
    headers = {"webhook-id": message["id"], "Webhook-Timestamp": message["timestamp"], "webhook-signature": ""}
    headers["webhook-signature"] = message["signature"]
    body = base64.b64decode(message["body"])
    assert verify_webhook(message["secret"], headers, body)["type"] == "TEST"
    for other in (body + b" ", body.replace(b"TEST", b"TES7")):
        try:
            verify_webhook(message["secret"], headers, other)
        except WebhookVerificationError:
            continue
        raise AssertionError(f"accepted {other!r}")


async def main() -> None:
    url = os.environ["TOLLGATE_URL"]
    key = os.environ["TOLLGATE_API_KEY"]
    with Tollgate(url, key, retries=Retries(longest_wait_s=1)) as tollgate:
        use(tollgate)
        assert key not in repr(tollgate) + repr(vars(tollgate))
    refuse_line_break(url, key)
    async with AsyncTollgate(url, key, retries=Retries(most=20)) as at_once:
        await use_at_once(at_once)
    verify(json.loads(Path(sys.argv[1]).read_text()))


if __name__ == "__main__":
    asyncio.run(main())
