"""`POST /internal/v1/training/…`: what a trainer reports and asks. 400 names what is malformed; nothing of it is taken.

All but `environment` need the internal token; that one needs the token of a claimed attempt, so that a machine of the
backend can start a job without the internal token.

See docs/reference/training.md#internal-api.
"""

from typing import Any

import orjson
from aiohttp import web

from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.reports import json_object, received
from control.api.session_pages.pairing import TERMINALS
from control.api.training.checkpoint_bodies import checkpoint_reports
from control.api.training.trainer_bodies import (
    abilities_in,
    attempt_in,
    backend_report,
    cache_summary,
    output_batch,
    token_in,
)
from control.long_work import OPERATOR, beside
from control.resources.training import backend_reports, checkpoints, claims, projects
from control.resources.training_hosts.node_samples import NodeSamples
from policy.training.reports import WantedState
from policy.training.statuses import DEPLOYING


async def _post_sync(request: web.Request) -> web.Response:
    dependencies, body = await received(request)
    report = await backend_report(body)
    synced = await backend_reports.take_report(dependencies.store, report)
    dependencies.metrics.training_jobs_entered(synced.entered)
    await NodeSamples(dependencies.store).insert(report.samples)
    state = WantedState(synced.jobs, request.app[TERMINALS].wanted(), synced.forgotten_caches)
    return _answer(await beside(OPERATOR, len(state.jobs), state.to_wire))


async def _post_claim(request: web.Request) -> web.Response:
    dependencies, body = await received(request)
    claimed = await claims.claim(dependencies.store, request.match_info["job_id"], attempt_in(body), abilities_in(body))
    dependencies.metrics.training_jobs_entered([DEPLOYING])
    return _answer(claimed.to_wire())


async def _post_environment(request: web.Request) -> web.Response:
    dependencies = request.app[DEPENDENCIES]
    token = token_in(json_object(await request.read()))
    opened = await claims.open_environment(dependencies.store, dependencies.settings.secret_keys, token)
    weights = [one.to_wire() for one in opened.weights]
    return _answer({"environment": opened.variables, "secrets": opened.secrets, "weights": weights})


async def _post_output(request: web.Request) -> web.Response:
    dependencies, body = await received(request)
    result = await dependencies.training_output.accept(request.match_info["job_id"], await output_batch(body))
    dependencies.metrics.training_output_dropped("line", result.dropped_lines)
    dependencies.metrics.training_output_dropped("metric", result.dropped_points)
    return _answer({"offset": result.offset})


async def _post_checkpoints(request: web.Request) -> web.Response:
    dependencies, body = await received(request)
    job_id = request.match_info["job_id"]
    attempt = attempt_in(body)
    reports = await checkpoint_reports(job_id, body)
    result = await checkpoints.take_reports(dependencies.store, job_id, attempt, reports)
    dependencies.metrics.training_checkpoints_entered(result.entered)
    return _answer({})


async def _post_cache(request: web.Request) -> web.Response:
    dependencies, body = await received(request)
    await projects.take_cache(dependencies.store, await cache_summary(body))
    return _answer({})


async def _post_removed_cache(request: web.Request) -> web.Response:
    dependencies, _ = await received(request)
    await projects.take_removed_cache(dependencies.store, request.match_info["project_id"])
    return _answer({})


def _answer(body: Any) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    return web.Response(body=orjson.dumps(body), headers=headers, content_type="application/json")


_JOB = "/internal/v1/training/jobs/{job_id}"
ROUTES = [
    web.post("/internal/v1/training/sync", _post_sync),
    web.post("/internal/v1/training/environment", _post_environment),
    web.post(f"{_JOB}/claim", _post_claim),
    web.post(f"{_JOB}/output", _post_output),
    web.post(f"{_JOB}/checkpoints", _post_checkpoints),
    web.post("/internal/v1/training/caches", _post_cache),
    web.post("/internal/v1/training/caches/{project_id}/removed", _post_removed_cache),
]
