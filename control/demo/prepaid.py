"""The demo's step on prepaid balances: calls draw from the credit until it is used up; a top-up lets them through.

A step like those of `steps.py`. The price of the slug was set by that of `hard_limit.py`.
"""

from decimal import Decimal
from typing import Any

from control.demo.hard_limit import COST, SLUG, customer_of, message, refusal_of, use_up
from control.demo.scene import Scene, expect, until

CREDIT = Decimal("0.01")


async def topped_up(scene: Scene) -> list[str]:
    """prepay what a customer may spend: used up, calls are refused and a webhook is told; a top-up lets them through"""
    operator = scene.operator
    body = {"metadata": {"external_entity_id": "acme-prepaid"}, "models": [{"slug": SLUG}]}
    id = (await operator.call("POST", "/v1/gateway/groups", body))["id"]
    group = f"/v1/gateway/groups/{id}"
    await operator.call("POST", f"{group}/balance/credits", _credit("INV-1"))
    key, webhook = await customer_of(scene, id)
    answered, refusal = await use_up(scene, key, CREDIT)
    expect(refusal.body["error_code"] == "BALANCE_EXHAUSTED", f"the refusal was {refusal}")
    look_for_alert = message(scene, webhook["secret"], "BALANCE_EXHAUSTED")

    async def is_told() -> Any:
        # Until the calls are counted it is said of no refusal: they might yet cost less than they reserved.
        again = await refusal_of(scene, key)
        expect(again is not None and again.status == 402, f"a call without credit: {again or 'it was answered'}")
        return await look_for_alert()

    alert = await until(is_told, "the webhook was told of nothing")
    expect(alert["data"]["limit"]["kind"] == "BALANCE", f"the alert was {alert}")
    await operator.call("DELETE", f"/v1/gateway/webhooks/{webhook['id']}")
    scene.receiver.messages.clear()
    await operator.call("POST", f"{group}/balance/credits", _credit("INV-2"))

    async def is_answered() -> bool:
        return await refusal_of(scene, key) is None

    await until(is_answered, "the top-up let no call through")
    spent = (answered + 1) * COST

    async def drawn() -> Any:
        balance = await operator.call("GET", f"{group}/balance")
        return balance if Decimal(balance["spent"]) == spent and not Decimal(balance["reserved"]) else None

    balance = await until(drawn, f"{spent} EUR were not drawn")
    expect(Decimal(balance["available"]) == 2 * CREDIT - spent, f"the balance was {balance}")
    return [
        f"{answered} calls drew {answered * COST} of {CREDIT} EUR",
        f"{refusal.status} {refusal.body['error']}",
        f"the webhook received {alert['type']}",
        f"topped up by {CREDIT} EUR; a call was answered, {balance['available']} EUR are left",
    ]


def _credit(reference: str) -> dict[str, str]:
    return {"amount": str(CREDIT), "currency": "EUR", "reference": reference}
