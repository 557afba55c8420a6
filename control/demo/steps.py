"""The steps of the demo, in order. Each does one thing through the public API and returns lines to print.

A step raises `StepFailedError` if the product does not do what it promises.
"""

import time
from typing import Any

from control.demo.async_result import result_delivered
from control.demo.caller import RefusedError, ask, ask_streamed
from control.demo.cold_start import cold_start, launcher_started
from control.demo.console_look import console_shown
from control.demo.hard_limit import spend_limited
from control.demo.prepaid import topped_up
from control.demo.product import ManagementClient
from control.demo.scene import Scene, Step, StepFailedError, expect, until
from control.demo.training_run import job_submitted, job_trained
from control.demo.upstream import CACHED_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS
from policy.endpoints import PLATFORM

SLUG = "acme/assistant"
PARENT_LIMIT = 5
CHILD_LIMIT = 4
"""Requests per minute of the company, and of each of its two teams. The teams' sum exceeds the company's limit."""


async def product_up(scene: Scene) -> list[str]:
    """start the product: Redis, control, trainer, proxy with two workers"""
    return [await scene.product.start()]


async def workspace_made(scene: Scene) -> list[str]:
    """create a workspace with the operator's command"""
    acme = await scene.product.command("workspace", "create", "acme", "--prefix", "acme")
    scene.desk = ManagementClient(scene.product.control, acme["api_key"])
    scene.began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return [f"workspace {acme['workspace_id']} owns {acme['prefixes']}, key {acme['api_key'].split('.')[0]}.…"]


async def models_registered(scene: Scene) -> list[str]:
    """register two model servers as platform models"""
    for upstream in scene.upstreams:
        await upstream.start()
        model = await scene.operator.call("POST", "/v1/models", {"name": upstream.name})
        path = f"/v1/models/{model['id']}"
        deployment = await scene.operator.call("POST", path + "/deployments", {"name": "first"})
        replicas = {"replicas": [upstream.url]}
        await scene.operator.call("PUT", f"{path}/deployments/{deployment['id']}/replicas", replicas)
        await scene.operator.call("PUT", path + "/environments/production", {"deployment_id": deployment["id"]})
        scene.models.append(model["id"])
    return [f"{u.name} at {u.url} is model {id}" for u, id in zip(scene.upstreams, scene.models, strict=True)]


async def endpoint_made(scene: Scene) -> list[str]:
    """create an endpoint: a slug and its target"""
    target = {"provider": PLATFORM, "model_id": scene.models[0], "target_model": "alpha-7b"}
    endpoint = await scene.operator.call("POST", "/v1/gateway/endpoints", {"slug": SLUG, "targets": [target]})
    scene.endpoint_id = endpoint["id"]
    return [f"{endpoint['slug']} → {endpoint['targets'][0]}"]


async def groups_made(scene: Scene) -> list[str]:
    """create a tree of groups: a company and its two teams, CASCADING"""
    company = _group("company", PARENT_LIMIT, {"limit_enforcement": "CASCADING"})
    company["models"][0]["usage_limits"] = [{"type": "TOKEN", "unit": "DAY", "threshold": 100_000}]
    root = await scene.operator.call("POST", "/v1/gateway/groups", company)
    scene.groups["company"] = root["id"]
    lines = [f"company: {PARENT_LIMIT} requests a minute, 100000 tokens a day"]
    for team in ("blue", "green"):
        new_group = _group(team, CHILD_LIMIT, {"parent_group_id": root["id"]})
        group = await scene.operator.call("POST", "/v1/gateway/groups", new_group)
        scene.groups[team] = group["id"]
        limits = [limit for m in group["effective_models"] for limit in m["rate_limits"] + m["usage_limits"]]
        expect({limit["source_group"] for limit in limits} == {root["id"], group["id"]}, f"bound by {limits}")
        lines.append(f"└ {team}: {CHILD_LIMIT} requests a minute of its own; {len(limits)} limits bind it, up the tree")
    return lines


def _group(name: str, requests_a_minute: int, hierarchy: dict[str, str]) -> dict[str, Any]:
    limit = {"type": "REQUEST", "unit": "MINUTE", "threshold": requests_a_minute}
    models = [{"slug": SLUG, "rate_limits": [limit], "usage_limits": []}]
    return {"metadata": {"external_entity_id": f"acme-{name}"}, "models": models, "hierarchy": hierarchy}


async def keys_minted(scene: Scene) -> list[str]:
    """mint a key for each team"""
    for team in ("blue", "green"):
        path = f"/v1/gateway/groups/{scene.groups[team]}/api_keys"
        scene.keys[team] = await scene.operator.call("POST", path, {"name": f"{team}'s first"})
    return [f"{team}: {minted['prefix']}.… (shown once)" for team, minted in scene.keys.items()]


async def answered(scene: Scene) -> list[str]:
    """call the slug with a stock HTTP client, as the OpenAI SDK does"""
    answer = await _ask(scene, "blue")
    text = _text(answer)
    alpha = scene.upstreams[0]
    request = scene.upstreams[0].requests[-1]
    expect(text == "".join(alpha.words), f"the answer was {text!r}")
    expect(answer["model"] == SLUG, f"the answer's model was {answer['model']!r}")
    expect(request["body"]["model"] == "alpha-7b", f"upstream was asked for {request['body']['model']!r}")
    expect(scene.key("blue") not in str(request), "upstream saw the caller's key")
    usage = answer["usage"]
    expect(usage["prompt_tokens"] == INPUT_TOKENS, f"the usage was {usage}")
    return [f"{text!r}, model {answer['model']}; upstream was asked for alpha-7b and never saw the caller's key"]


async def streamed(scene: Scene) -> list[str]:
    """stream an answer at the upstream's pace"""
    began = time.monotonic()
    pieces = []
    arrived = []
    async for chunk in ask_streamed(scene.product.proxy, scene.key("blue"), SLUG, "Slowly, please."):
        expect("usage" not in chunk and bool(chunk["choices"]), f"a chunk that was not asked for: {chunk}")
        expect(chunk["model"] == SLUG, f"a chunk's model was {chunk['model']!r}")
        pieces.append(chunk["choices"][0]["delta"].get("content", ""))
        arrived.append(time.monotonic() - began)
    scene.answered += 1
    expect("".join(pieces) == "".join(scene.upstreams[0].words), f"the pieces were {pieces}")
    expect(arrived[-1] - arrived[0] > scene.upstreams[0].pause_s, "the stream was held back and came at once")
    at = ", ".join(f"{second * 1000:.0f}" for second in arrived)
    return [f"{len(pieces)} chunks after {at} ms; usage metered, though the caller had not asked for it"]


async def refused_by_parent(scene: Scene) -> list[str]:
    """exceed the company's limit while the team's own limit has room"""
    lines = []
    for team in ("blue", "green", "green"):
        await _ask(scene, team)
    lines.append(
        f"blue has used 3 of its {CHILD_LIMIT}, green 2 of its {CHILD_LIMIT}; the company {scene.answered} of 5"
    )
    try:
        await _ask(scene, "green")
    except RefusedError as refusal:
        expect(refusal.status == 429, f"the sixth call in a minute {refusal}")
        body = refusal.body
        after = refusal.retry_after
    else:
        raise StepFailedError("the sixth call in a minute was answered")
    expect(
        body.get("error_code") == "RATE_LIMITED" and f"{PARENT_LIMIT}" in body["error"],
        f"the refusal was {body}",
    )
    expect(after.isdigit() and 1 <= int(after) <= 60, f"Retry-After was {after!r}")
    expect(scene.groups["company"] not in body["error"], "the refusal names another group")
    return [*lines, f"429 {body['error']}", f"Retry-After: {after}"]


async def usage_read(scene: Scene) -> list[str]:
    """read the day's usage of the company and its teams"""
    spent = scene.answered * (INPUT_TOKENS + OUTPUT_TOKENS)
    path = f"/v1/gateway/groups/{scene.groups['green']}/usage"

    async def look() -> Any:
        items = (await scene.operator.call("GET", path))["items"]
        return [item for item in items if item["current_usage"] == spent]

    (entry,) = await until(look, f"usage never became {spent}: {await scene.operator.call('GET', path)}")
    expect(entry["source_group"] == scene.groups["company"], f"the usage entry was {entry}")
    return [
        f"{entry['current_usage']} of {entry['threshold']} tokens, until {entry['reset_at']} (limit of the company)"
    ]


async def metrics_scraped(scene: Scene) -> list[str]:
    """scrape metrics by external_entity_id and status, summed over the workers"""
    counts = {
        ("acme-blue", "200"): 3.0,
        ("acme-green", "200"): 2.0,
        ("acme-green", "429"): 1.0,
    }

    async def look() -> Any:
        page = await scene.operator.text(scene.product.admin + "/metrics")
        lines = [line for line in page.splitlines() if line.startswith("platform_model_api_")]
        are_equal = all(_counted(lines, entity, status) == count for (entity, status), count in counts.items())
        return [line for line in lines if "_created" not in line] if are_equal else None

    return list(await until(look, f"the metrics never showed {counts}"))


def _counted(lines: list[str], entity: str, status: str) -> float:
    labels = (f'external_entity_id="{entity}"', f'status_code="{status}"', f'model_slug="{SLUG}"')
    name = "platform_model_api_inference_requests_total{"
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and all(x in line for x in labels))


async def events_listed(scene: Scene) -> list[str]:
    """list billing events: one per answered call, none for the refused one"""

    async def look() -> Any:
        items = (await scene.operator.call("GET", "/v1/gateway/events", start_time=scene.began))["items"]
        return items if len(items) >= scene.answered else None

    events = await until(look, f"{scene.answered} events never came")
    expect(len({event["idempotencyKey"] for event in events}) == len(events) == scene.answered, f"{len(events)} events")
    tokens = {"inputTokens": INPUT_TOKENS, "outputTokens": OUTPUT_TOKENS, "cachedInputTokens": CACHED_TOKENS}
    expect(all(event["tokens"] == tokens for event in events), f"tokens: {[event['tokens'] for event in events]}")
    who = [event["externalEntityId"] for event in events]
    expect(sorted(who) == ["acme-blue"] * 3 + ["acme-green"] * 2, f"billed to {who}")
    return [f"{e['timestamp']} {e['externalEntityId']:11} {e['idempotencyKey']} {e['tokens']}" for e in events]


async def target_swapped(scene: Scene) -> list[str]:
    """point the slug at the other model: live in under a second"""
    await _lift_limits(scene)
    target = {"provider": PLATFORM, "model_id": scene.models[1], "target_model": "beta-70b"}
    path = f"/v1/gateway/endpoints/{scene.endpoint_id}"
    await scene.operator.call("PATCH", path, {"targets": [target]})
    began = time.monotonic()

    async def look() -> bool:
        return _text(await _ask(scene, "blue")) == "".join(scene.upstreams[1].words)

    await until(look, "the other model never answered")
    took_ms = (time.monotonic() - began) * 1000
    expect(took_ms < 1000, f"it took {took_ms:.0f} ms")
    return [f"{scene.upstreams[1].name} answers {took_ms:.0f} ms after the PATCH; slug, keys and limits are the same"]


async def _lift_limits(scene: Scene) -> None:
    """Raise the limits for the following calls; thresholds apply to the running window at once."""
    for group in ("company", "blue"):
        models = _group(group, 1000, {})["models"]
        await scene.operator.call("PATCH", f"/v1/gateway/groups/{scene.groups[group]}", {"models": models})

    async def look() -> bool:
        try:
            await _ask(scene, "blue")
            await _ask(scene, "blue")  # blue's old limit may have had room for the first call
        except RefusedError as refusal:
            if refusal.status != 429:
                raise
            return False
        return True

    await until(look, "the raised limit never took effect")


async def key_revoked(scene: Scene) -> list[str]:
    """revoke a key: live in under a second"""
    path = f"/v1/gateway/groups/{scene.groups['blue']}/api_keys/{scene.keys['blue']['prefix']}"
    await scene.operator.call("DELETE", path)
    began = time.monotonic()

    async def look() -> Any:
        try:
            await _ask(scene, "blue")
        except RefusedError as refusal:
            expect(refusal.status == 403, f"a call with the revoked key {refusal}")
            return refusal.body
        return None

    body = await until(look, "the revoked key went on working")
    took_ms = (time.monotonic() - began) * 1000
    expect(body == {"error": "Authentication failed"} and took_ms < 1000, f"{body} after {took_ms:.0f} ms")
    return [f"403 {body['error']}, {took_ms:.0f} ms after the DELETE"]


async def product_down(scene: Scene) -> list[str]:
    """send SIGTERM: the product drains and stops"""
    await scene.operator.close()
    status = await scene.product.stop()
    expect(status == 0, f"`tollgate up` ended with {status}:\n{scene.product.last_log_lines()}")
    return ["exit status 0"]


async def _ask(scene: Scene, team: str) -> Any:
    answer = await ask(scene.product.proxy, scene.key(team), SLUG, "Who are you?")
    scene.answered += 1
    return answer


def _text(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


STEPS: tuple[Step, ...] = (
    product_up,
    workspace_made,
    models_registered,
    endpoint_made,
    groups_made,
    keys_minted,
    answered,
    streamed,
    refused_by_parent,
    usage_read,
    metrics_scraped,
    job_submitted,
    events_listed,
    target_swapped,
    key_revoked,
    spend_limited,
    topped_up,
    launcher_started,
    cold_start,
    result_delivered,
    job_trained,
    console_shown,
    product_down,
)
