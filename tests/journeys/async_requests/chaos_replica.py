"""A model server whose calls say how it is to answer: `python -m tests.journeys.async_requests.chaos_replica PORT LOG`.

A `model_input` is `{"n": 7, "do": ["500", "ok"], "s": 0.5, "bytes": 10}`: attempt 1 is answered 500 after half a
second, each later one 200. LOG gets a JSON line when an attempt begins and one when it ends, before its last byte
leaves.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from aiohttp import web

MOST_BYTES = 1 << 20
GOOD = ("ok", "text")
"""Words that make a request succeed. All other words are statuses, "hang up" and "cut short"."""


def answer_of(model_input: dict[str, Any], attempt: int, how: str) -> Any:
    """The answer, as `data` of a webhook must show it."""
    if how == "text":
        return f'request {model_input["n"]}, attempt {attempt}: "çà" \\ {"t" * model_input["bytes"]}'
    return {"n": model_input["n"], "attempt": attempt, "filling": "x" * model_input["bytes"]}


class ChaosReplica:
    def __init__(self, log: Path) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def _note(self, event: str, call: web.Request, **more: Any) -> None:
        id = call.headers["x-request-id"]
        attempt = int(call.headers["x-async-attempt"])
        line = {"event": event, "at": time.time(), "id": id, "attempt": attempt, **more}
        os.write(self._log, json.dumps(line).encode() + b"\n")

    async def predict(self, call: web.Request) -> web.StreamResponse:
        self._note("begin", call)
        try:
            model_input = json.loads(await call.read())
            attempt = int(call.headers["x-async-attempt"])
            how = model_input["do"][min(attempt, len(model_input["do"])) - 1]
            await asyncio.sleep(model_input["s"])
        except (asyncio.CancelledError, OSError):  # the caller has closed the connection
            self._note("end", call, how="left")
            raise
        self._note("end", call, how=how, n=model_input["n"])
        return await self._answer(call, model_input, attempt, how)

    async def _answer(
        self, call: web.Request, model_input: dict[str, Any], attempt: int, how: str
    ) -> web.StreamResponse:
        if how == "ok":
            return web.json_response(answer_of(model_input, attempt, how))
        if how == "text":
            return web.Response(text=answer_of(model_input, attempt, how))
        if how.isdigit():
            return web.Response(status=int(how), text=f"no answer to {model_input['n']}")
        if how == "cut short":
            response = web.StreamResponse(headers={"content-length": "1000", "content-type": "application/json"})
            await response.prepare(call)
            await response.write(b'{"n":')
        if call.transport is not None:
            call.transport.close()
        return web.Response()


async def main(port: int, log: Path) -> None:
    app = web.Application(client_max_size=MOST_BYTES)
    app.router.add_post("/predict", ChaosReplica(log).predict)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    print("listening", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
