"""A small model server in a process of its own: `python -m tests.journeys.model_server PORT FOLDER`.

`/predict` answers what it was sent; below `/v1` it is OpenAI-like; `/files/…` are the files of FOLDER, with validators
and ranges.
"""

import asyncio
import json
import sys
from pathlib import Path

from aiohttp import web

MODEL = "tiny-1"
MOST_BYTES = 100_000_000


async def predict(request: web.Request) -> web.StreamResponse:
    if request.query.get("raise"):
        return web.Response(status=500)
    return web.Response(body=await request.read(), content_type=request.content_type)


async def models(_: web.Request) -> web.Response:
    return web.json_response(
        {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "us"}]}
    )


async def chat(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    if body["model"] != MODEL:
        error = {"message": f"no model {body['model']}", "type": "NotFoundError", "param": "model", "code": 404}
        return web.json_response({"error": error}, status=404)
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)
    for word in ("Hello ", "there"):
        delta = {"index": 0, "delta": {"content": word}, "finish_reason": None}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [delta]}
        await answer.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    await answer.write(b"data: [DONE]\n\n")
    return answer


async def seen(request: web.Request) -> web.Response:
    """Answer with what arrived: method, target and header fields."""
    fields = {name.lower(): value for name, value in request.headers.items()}
    return web.json_response({"method": request.method, "target": request.raw_path, "fields": fields})


async def main(port: int, folder: Path) -> None:
    app = web.Application(client_max_size=MOST_BYTES)
    app.router.add_post("/predict", predict)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_static("/files", folder)
    app.router.add_route("*", "/seen/{rest:.*}", seen)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print("listening", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
