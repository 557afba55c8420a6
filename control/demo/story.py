"""Tells the demo: runs the steps in order, prints what each saw, and says at the end whether all held."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp

from control.demo.caller import RefusedError
from control.demo.product import Product, ProductError
from control.demo.steps import STEPS, Scene, Step, StepFailedError
from control.demo.upstream import ScriptedUpstream

Print = Callable[[str], None]
_FAILURES = (StepFailedError, ProductError, RefusedError, aiohttp.ClientError, OSError, KeyError, TimeoutError)


async def tell(out: Print, *, keep: bool) -> int:
    """The exit status: 0 when every step held."""
    began = time.monotonic()
    data = Path(tempfile.mkdtemp(prefix="tollgate-demo-"))
    scene = Scene(Product(data), [ScriptedUpstream("alpha", 0.05), ScriptedUpstream("beta")])
    try:
        held = await _tell_steps(scene, out)
    finally:
        await _tidy(scene)
        if not keep:
            shutil.rmtree(data, ignore_errors=True)
    took = f"{time.monotonic() - began:.1f} s"
    out(f"\nall {len(STEPS)} steps held, in {took}" if held else f"\nthe demo FAILED, after {took}")
    if keep:
        out(f"the data directory is kept: {data}")
    return 0 if held else 1


async def _tell_steps(scene: Scene, out: Print) -> bool:
    for number, step in enumerate(STEPS, 1):
        try:
            await _tell_step(number, step, scene, out)
        except _FAILURES as failure:
            out(f"    ✗ {type(failure).__name__}: {failure}")
            out(f"\nthe product's own last words:\n{scene.product.last_words()}")
            return False
    return True


async def _tell_step(number: int, step: Step, scene: Scene, out: Print) -> None:
    out(f"{number:2}  {step.__doc__}")
    began = time.monotonic()
    seen = await step(scene)
    for line in seen:
        out(f"    {line}")
    out(f"    ✓ {(time.monotonic() - began) * 1000:.0f} ms")


async def _tidy(scene: Scene) -> None:
    if scene.desk is not None:
        await scene.desk.close()
    await scene.product.stop()
    await asyncio.gather(*(upstream.stop() for upstream in scene.upstreams if upstream.url))
