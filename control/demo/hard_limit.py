"""The demo's step on spend limits: a HARD limit refuses the call that would exceed it, and a webhook is told.

A step like those of `steps.py`.
"""

from decimal import Decimal
from typing import Any

from control.demo.caller import RefusedError, ask
from control.demo.scene import Scene, expect, until
from control.demo.upstream import INPUT_TOKENS, OUTPUT_TOKENS

SLUG = "acme/assistant"
AMOUNT = Decimal("0.01")
INPUT_PRICE = 20
OUTPUT_PRICE = 200
"""EUR per million tokens. So a call costs `COST`, and can cost `MOST`: each byte of it may be a token."""
MOST_OUTPUT = 16
_UNDECIDED = 503
COST = Decimal(INPUT_TOKENS * INPUT_PRICE + OUTPUT_TOKENS * OUTPUT_PRICE) / 1_000_000
MOST = 2 * COST
PERCENT = 70


async def spend_limited(scene: Scene) -> list[str]:
    """limit what a customer may spend, HARD: the call that would exceed it is refused, and a webhook is told"""
    operator = scene.operator
    price = {"input_per_million": str(INPUT_PRICE), "output_per_million": str(OUTPUT_PRICE)}
    more = {"slug": SLUG, "valid_from": "2026-01-01", "currency": "EUR", "max_output_tokens": MOST_OUTPUT}
    await operator.call("PUT", "/v1/gateway/prices", more | price)
    limit = {"unit": "DAY", "amount": str(AMOUNT), "currency": "EUR", "enforcement": "HARD"}
    body = {"metadata": {"external_entity_id": "acme-small"}, "models": [{"slug": SLUG}], "spend_limits": [limit]}
    group = await operator.call("POST", "/v1/gateway/groups", body | {"alert_percents": [PERCENT]})
    key, webhook = await customer_of(scene, group["id"])
    answered, refusal = await use_up(scene, key, AMOUNT)
    expect(refusal.body["error_code"] == "SPEND_LIMIT_EXCEEDED", f"the refusal was {refusal}")
    request = scene.upstreams[1].requests[-1]["body"]
    expect(request.get("max_tokens") == MOST_OUTPUT, f"upstream was asked for {request}")
    alert = await until(message(scene, webhook["secret"], "LIMIT_ALERT"), "the webhook was told of nothing")
    await operator.call("DELETE", f"/v1/gateway/webhooks/{webhook['id']}")
    scene.receiver.messages.clear()
    amount = alert["data"]["used"]
    expect(Decimal(amount) == answered * COST, f"the alert was {alert}")
    return [
        f"{answered} calls cost {amount} EUR; upstream may give {MOST_OUTPUT} tokens: the next could cost too much",
        f"{refusal.status} {refusal.body['error']}",
        f"the webhook received {alert['type']}: {amount} of {AMOUNT} EUR are spent, above {PERCENT} %",
    ]


async def customer_of(scene: Scene, group_id: str) -> tuple[str, Any]:
    """Mint a key for the group, and have a webhook told of its limits and its balance."""
    key = (await scene.operator.call("POST", f"/v1/gateway/groups/{group_id}/api_keys", {}))["api_key"]
    hook = {"url": scene.receiver.url, "event_types": ["LIMIT_ALERT"], "group_id": group_id}
    webhook = await scene.operator.call("POST", "/v1/gateway/webhooks", hook)
    await scene.receiver.start()
    return key, webhook


async def use_up(scene: Scene, key: str, amount: Decimal) -> tuple[int, RefusedError]:
    """Call until the amount leaves no room for a call. Returns how many were answered, and the refusal.

    A call is refused before that while the last one is still counted with what it could have cost.
    """
    answered = 0

    async def is_used_up() -> RefusedError | None:
        nonlocal answered
        refusal = await refusal_of(scene, key)
        if refusal is None:
            answered += 1
            expect(answered * COST < amount, f"{answered} calls were answered")
            return None
        return refusal if answered * COST + MOST > amount else None

    refusal: RefusedError = await until(is_used_up, f"{amount} EUR were not used up")
    return answered, refusal


async def refusal_of(scene: Scene, key: str) -> RefusedError | None:
    """Make a call; returns the refusal, if it is one. Until a new limit is counted, and where Redis is late on a busy
    machine, the answer is 503: then the call is made again."""

    async def look() -> tuple[RefusedError | None] | None:
        try:
            await ask(scene.product.proxy, key, SLUG, "Who are you?")
        except RefusedError as refusal:
            return None if refusal.status == _UNDECIDED else (refusal,)
        return (None,)

    (decision,) = await until(look, "nobody decided on a call")
    refusal: RefusedError | None = decision
    return refusal


def message(scene: Scene, secret: str, type: str) -> Any:
    """A look for the message of this type that the receiver was told, parsed, its signature being valid."""

    async def look() -> Any:
        messages = [scene.receiver.verified(secret, number) for number in range(len(scene.receiver.messages))]
        return next((message for message in messages if message["type"] == type), None)

    return look
