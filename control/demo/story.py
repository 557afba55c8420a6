"""Runs the demo's steps in order, prints what each one returns, and whether all held."""

import asyncio
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp

from control.demo.caller import RefusedError
from control.demo.product import Product, ProductError
from control.demo.result_receiver import ResultReceiver
from control.demo.scene import Scene, Step, StepFailedError
from control.demo.steps import STEPS
from control.demo.upstream import ScriptedUpstream

Print = Callable[[str], None]
_FAILURES = (StepFailedError, ProductError, RefusedError, aiohttp.ClientError, OSError, KeyError, TimeoutError)


async def run_demo(out: Print, *, keep: bool, stay: bool = False) -> int:
    """Run the demo; returns the exit status, 0 if every step held. `stay`: wait for Ctrl-C before the last step."""
    began = time.monotonic()
    data = Path(tempfile.mkdtemp(prefix="tollgate-demo-"))
    receiver = ResultReceiver(data)
    receiver.make_certificates()
    settings = {
        "TOLLGATE_EGRESS_ALLOW": f"127.0.0.0/8,{receiver.link}",  # the demo's upstreams are on this machine
        "TOLLGATE_EGRESS_CA_FILE": str(receiver.ca_file),
    }
    upstreams = [ScriptedUpstream("alpha", 0.05), ScriptedUpstream("beta")]
    scene = Scene(Product(data, settings), upstreams, receiver)
    try:
        has_passed = await _run_steps(scene, out, stay=stay)
    finally:
        await _clean_up(scene)
        if not keep:
            shutil.rmtree(data, ignore_errors=True)
    duration = f"{time.monotonic() - began:.1f} s"
    out(f"\nall {len(STEPS)} steps held, in {duration}" if has_passed else f"\nthe demo FAILED, after {duration}")
    if keep:
        out(f"the data directory is kept: {data}")
    return 0 if has_passed else 1


async def _run_steps(scene: Scene, out: Print, *, stay: bool) -> bool:
    for number, step in enumerate(STEPS, 1):
        if stay and step is STEPS[-1]:
            await _stay(scene, out)
        try:
            await _run_step(number, step, scene, out)
        except _FAILURES as failure:
            out(f"    ✗ {type(failure).__name__}: {failure}")
            out(f"\nlast lines of the product's log:\n{scene.product.last_log_lines()}")
            return False
    return True


async def _stay(scene: Scene, out: Print) -> None:
    """Keep the product running, to be looked at, until Ctrl-C."""
    out(f"\nconsole: {scene.product.control}/console   log in with: {scene.operator.api_key}")
    out("Ctrl-C goes on.")
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stopped.set)
    try:
        await stopped.wait()
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _run_step(number: int, step: Step, scene: Scene, out: Print) -> None:
    out(f"{number:2}  {step.__doc__}")
    began = time.monotonic()
    lines = await step(scene)
    for line in lines:
        out(f"    {line}")
    out(f"    ✓ {(time.monotonic() - began) * 1000:.0f} ms")


async def _clean_up(scene: Scene) -> None:
    scene.receiver.close()
    if scene.desk is not None:
        await scene.desk.close()
    await scene.product.stop()
    await asyncio.gather(*(upstream.stop() for upstream in scene.upstreams if upstream.url))
