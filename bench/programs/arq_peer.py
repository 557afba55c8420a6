"""The peer of asynchronous requests: the same job as a plain arq queue. Runs in an environment of its own.

`python bench/programs/arq_peer.py web PORT` accepts, `… worker` runs. `ARQ_REDIS`: a unix socket; `ARQ_REPLICA`: a URL;
`ARQ_CA`: a file for TLS. As the arq documentation shows it: one job posts to the model server and then to the webhook.
"""

import asyncio
import json
import os
import ssl
import sys
from typing import Any

import aiohttp
import uvloop
from aiohttp import web
from arq import Retry, create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

TRIED_AGAIN = (500, 502, 503, 504)
REDIS = RedisSettings(unix_socket_path=os.environ.get("ARQ_REDIS", ""))


async def start_up(ctx: dict[str, Any]) -> None:
    ctx["ssl"] = ssl.create_default_context(cafile=os.environ["ARQ_CA"])
    ctx["session"] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def shut_down(ctx: dict[str, Any]) -> None:
    await ctx["session"].close()


async def predict(ctx: dict[str, Any], model_input: Any, webhook: str) -> dict[str, Any]:
    """Post to the model server, then to the webhook. The result is the request's status, kept for an hour."""
    headers = {"x-request-id": ctx["job_id"], "x-async-attempt": str(ctx["job_try"])}
    async with ctx["session"].post(os.environ["ARQ_REPLICA"], json=model_input, headers=headers) as answer:
        if answer.status in TRIED_AGAIN:
            raise Retry(defer=1)
        data = await answer.json()
    message = {"request_id": ctx["job_id"], "type": "async_request_completed", "data": data, "errors": []}
    async with ctx["session"].post(webhook, json=message, ssl=ctx["ssl"]) as answer:
        if answer.status // 100 != 2:
            raise Retry(defer=15)
    return {"status": "SUCCEEDED", "errors": []}


async def make_app() -> web.Application:
    pool = await create_pool(REDIS)

    async def accept(call: web.Request) -> web.Response:
        body = await call.json()
        job = await pool.enqueue_job("predict", body["model_input"], body["webhook_endpoint"])
        return web.Response(
            status=201, body=json.dumps({"request_id": job.job_id}).encode(), content_type="application/json"
        )

    app = web.Application()
    app.router.add_post("/async_predict", accept)
    return app


async def work() -> None:
    worker = Worker(
        functions=[predict],
        redis_settings=REDIS,
        on_startup=start_up,
        on_shutdown=shut_down,
        max_jobs=200,
        job_timeout=3600,
        max_tries=3,
        keep_result=3600,
        handle_signals=False,
    )
    await worker.async_run()


async def accept_calls(port: int) -> None:
    runner = web.AppRunner(await make_app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(accept_calls(int(sys.argv[2])) if sys.argv[1] == "web" else work())
