"""Measures who waits for long work: `python -m bench.studies.long_work [VARIANT…] [BODY…]`.

A real worker serves governed calls of one workspace while callers of another one send hostile bodies. Told are the
longest wait of a small call, the governed calls a second that are left, and the time of a single hostile call.

`paced` is the product (`proxy/time_slices.py`). The others replace what runs beside the loop, by a
`sitecustomize` that is only on the path of this study: a thread at a switch interval, the loop itself, or a forked
process; or they read long JSON in a thread instead of slices.
"""

import http.client
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from bench.figures import Findings
from bench.load import Call, run_wrk
from bench.programs.gateway import Api, Gateway, make_workspace, start_gateway
from bench.programs.peers import CHAT, chat_body
from bench.programs.processes import treat_sigterm_as_interrupt
from bench.programs.subjects import Rig, start_rig

SECONDS = 3
CONNECTIONS = 8
CALLERS = (5, 50)
CLAUDE = "hostile/claude"
GPT = "hostile/gpt"
RESPONSES = "/v1/responses"
VARIANTS: Mapping[str, str] = {
    "paced": "",
    "thread, 5 ms": "proxy.time_slices._at_a_pace = unpaced",
    "thread, 0.5 ms": "sys.setswitchinterval(5e-4); proxy.time_slices._at_a_pace = unpaced",
    "thread, 0.05 ms": "sys.setswitchinterval(5e-5); proxy.time_slices._at_a_pace = unpaced",
    "on the loop": ("runtime.shares.places.in_daemon_thread = on_the_loop; proxy.time_slices._at_a_pace = unpaced"),
    "process": "proxy.time_slices._at_a_pace = forked",
    "JSON in a thread, paced": "json_beside()",
    "JSON in a thread, 5 ms": "proxy.time_slices._at_a_pace = unpaced; json_beside()",
    "JSON in a thread, 0.5 ms": ("sys.setswitchinterval(5e-4); proxy.time_slices._at_a_pace = unpaced; json_beside()"),
    "JSON in a thread, 0.05 ms": ("sys.setswitchinterval(5e-5); proxy.time_slices._at_a_pace = unpaced; json_beside()"),
}
"""The code of each variant's `sitecustomize`."""
CUSTOMIZED = """
import os, pickle, sys
if "proxy.worker" in " ".join(sys.orig_argv):
    import proxy.time_slices, runtime.shares.places

    def unpaced(work):
        return work()

    async def on_the_loop(work):
        return work()

    def forked(work):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.nice(10)
            try:
                answer = (True, work())
            except Exception as error:
                answer = (False, error)
            with os.fdopen(writing, "wb") as sink:
                pickle.dump(answer, sink)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as source:
            raw = source.read()
        os.waitpid(child, 0)
        done, value = pickle.loads(raw)
        if not done:
            raise value
        return value

    def json_beside():
        async def run(self, workspace, work, size_bytes, *, is_paid=False):
            return await self.beside(workspace, lambda: proxy.time_slices.at_once(work))

        proxy.time_slices.Slices.run = run

    {variant}
"""


@dataclass(frozen=True, slots=True)
class Body:
    """A hostile call: its path and body."""

    path: str
    body: bytes


def tools(count: int, name: str = "namespace") -> Body:
    inner = [{"type": "function", "name": f"t{number}", "parameters": {}} for number in range(count)]
    spaces = [{"type": "namespace", "name": name, "description": "d", "tools": inner}]
    return Body(RESPONSES, orjson.dumps({"model": CLAUDE, "input": "hi", "tools": spaces}))


def turns(count: int) -> Body:
    messages = [{"role": role, "content": "text"} for role in ("user", "assistant") * (count // 2)]
    messages.append({"role": "user", "content": "go on"})
    return Body(CHAT, orjson.dumps({"model": CLAUDE, "messages": messages}))


def strings(megabytes: int) -> Body:
    parts = [{"type": "text", "text": "text, " * 170}] * (megabytes * 1000)
    return Body(CHAT, orjson.dumps({"model": GPT, "messages": [{"role": "user", "content": parts}]}))


def deep_arguments(megabytes: int) -> Body:
    text = '{"a":[' * 20_000 + '"' + "x" * (megabytes << 20)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "go on"}]
    return Body(CHAT, orjson.dumps({"model": CLAUDE, "messages": messages}))


def numbers(kilobytes: int) -> Body:
    messages = [{"role": "user", "content": "hi"}]
    more = [0.123456789] * (kilobytes * 1000 // 12)
    return Body(CHAT, orjson.dumps({"model": GPT, "messages": messages, "more": more}))


BODIES: Mapping[str, Callable[[], Body]] = {
    "a namespace of 12 000 tools": lambda: tools(12_000),
    "a namespace of 2 000 tools": lambda: tools(1_990),
    "24 000 turns": lambda: turns(24_000),
    "500 turns": lambda: turns(490),
    "30 MB of strings": lambda: strings(28),
    "deep arguments": lambda: deep_arguments(3),
    "500 kB of numbers": lambda: numbers(500),
}


def main(arguments: list[str]) -> None:
    """`arguments`: variants; and names of bodies, by default all."""
    treat_sigterm_as_interrupt()
    names = [name for name in arguments if name in BODIES] or [*BODIES]
    for variant in [name for name in arguments if name in VARIANTS] or ["paced"]:
        with tempfile.TemporaryDirectory(prefix="tollgate-long-work-") as folder, ExitStack() as stack:
            _measure(variant, names, Path(folder), stack)


def measure_hostile_callers(rig: Rig, findings: Findings, scratch: Path) -> None:
    """Note the longest wait beside each of the bodies, on a Tollgate of its own."""
    place = scratch / "hostile"
    place.mkdir()
    upstream = f"http://127.0.0.1:{rig.direct.port}"
    gateway = start_gateway(rig.direct.port, place, settings={"TOLLGATE_VENDOR_A_BASE_URL": upstream})
    try:
        key = _hostile_key(gateway)
        for name, build in BODIES.items():
            with _hostile(gateway, key, build(), CALLERS[-1]):
                wait_ms = max(_waits(gateway, SECONDS))
            findings.facts.setdefault("hostile_wait_ms", []).append(wait_ms)
            findings.notes.append(
                f"longest wait of a small call beside {CALLERS[-1]} callers, {name}: {wait_ms:.0f} ms"
            )
    finally:
        gateway.program.stop()


def _measure(variant: str, names: list[str], scratch: Path, stack: ExitStack) -> None:
    custom = scratch / "custom"
    custom.mkdir()
    (custom / "sitecustomize.py").write_text(CUSTOMIZED.format(variant=VARIANTS[variant] or "pass"))
    rig = start_rig(stack, lambda port: Call(port, CHAT, chat_body("bench")), scratch, may_be_shared=True)
    upstream = f"http://127.0.0.1:{rig.direct.port}"
    settings = {"TOLLGATE_VENDOR_A_BASE_URL": upstream, "PYTHONPATH": str(custom), "TOLLGATE_REDIS_TIMEOUT_S": "1"}
    gateway = start_gateway(rig.direct.port, scratch, settings=settings)
    stack.callback(gateway.program.stop)
    key = _hostile_key(gateway)
    run_wrk(gateway.governed, CONNECTIONS, SECONDS, scratch)  # warms up
    alone = run_wrk(gateway.governed, CONNECTIONS, SECONDS, scratch)
    print(f"{variant}: {alone.rate_per_s:.0f} governed calls a second alone", flush=True)
    for name in names:
        body = BODIES[name]()
        own_ms = statistics.median(_one(gateway, key, body) for _ in range(3))
        line = f"  {name}: alone {own_ms:.0f} ms"
        for callers in CALLERS:
            with _hostile(gateway, key, body, callers):
                waits = _waits(gateway, SECONDS)
                load = run_wrk(gateway.governed, CONNECTIONS, SECONDS, scratch)
            line += f"; {callers} callers: wait {max(waits):.0f} ms, kept {load.rate_per_s / alone.rate_per_s:.0%}"
        print(line, flush=True)


def _hostile_key(gateway: Gateway) -> str:
    api = Api(f"http://127.0.0.1:{gateway.control_port}", make_workspace(gateway.data, "hostile"))
    secret = api.post("/v1/secrets", {"name": "upstream", "value": "bench"})["id"]
    for slug, provider in ((CLAUDE, "VENDOR_A"), (GPT, "VENDOR_B")):
        target = {"provider": provider, "secret_id": secret, "target_model": "mock"}
        api.post("/v1/gateway/endpoints", {"slug": slug, "targets": [target]})
    models = [{"slug": slug, "rate_limits": [], "usage_limits": []} for slug in (CLAUDE, GPT)]
    group = api.post("/v1/gateway/groups", {"metadata": {"external_entity_id": "hostile"}, "models": models})
    return api.mint(group["id"])


def _send(connection: http.client.HTTPConnection, path: str, body: bytes, headers: Mapping[str, str]) -> float:
    """Send a call; return how long it takes, in milliseconds."""
    began = time.perf_counter()
    connection.request("POST", path, body, {**headers, "content-type": "application/json"})
    connection.getresponse().read()
    return (time.perf_counter() - began) * 1e3


def _one(gateway: Gateway, key: str, body: Body) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.governed.port, timeout=60)
    try:
        return _send(connection, body.path, body.body, {"authorization": f"Bearer {key}"})
    finally:
        connection.close()


@contextmanager
def _hostile(gateway: Gateway, key: str, body: Body, callers: int) -> Iterator[None]:
    """Send the body from so many callers at once, again and again, until the block ends."""
    process = multiprocessing.get_context("fork").Process(
        target=_flood, args=(gateway, key, body, callers), daemon=True
    )
    process.start()
    time.sleep(1)
    try:
        yield
    finally:
        process.kill()
        process.join()


def _flood(gateway: Gateway, key: str, body: Body, callers: int) -> None:
    """Run in a process of its own and of low priority, so that it delays no measurement."""
    os.nice(10)

    def call() -> None:
        while True:
            try:
                _one(gateway, key, body)
            except OSError:  # refused early, while the body was being sent
                continue

    for _ in range(callers):
        threading.Thread(target=call, daemon=True).start()
    threading.Event().wait()


def _waits(gateway: Gateway, seconds: float) -> list[float]:
    """Return how long small governed calls take meanwhile, one after the other."""
    call = gateway.governed
    connection = http.client.HTTPConnection("127.0.0.1", call.port, timeout=60)
    ends = time.monotonic() + seconds
    waits = list[float]()
    while time.monotonic() < ends:
        waits.append(_send(connection, call.path, call.body.encode(), call.headers))
    connection.close()
    return waits


if __name__ == "__main__":
    main(sys.argv[1:])
