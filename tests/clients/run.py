"""`make clients`: runs every client against every provider, prints what holds, and writes docs/compatibility.md.

`python -m tests.clients.run [--only NAME[,NAME]] [--providers NAME[;NAME]]` runs a part, and leaves the page alone.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from policy.billing import Tokens
from tests.clients.catalogue import BUILT, CLIENTS, PROVIDERS, ROOT, TYPESCRIPT, Client, Provider
from tests.clients.compare import BY_DELIVERY, Run, cell
from tests.clients.page import PAGE, Results, page
from tests.clients.stage import Stage, Upstream, slug_of, staged
from tests.waiting import eventually

T = TypeVar("T")
AT_A_TIME = 4
CASE_TIMEOUT_S = 90
BILLING_PATIENCE_S = 10


class ClientProcess:
    """A client's script, running."""

    def __init__(self, client: Client, process: asyncio.subprocess.Process, cases: list[str]) -> None:
        self.client = client
        self.cases = sorted(cases, key=BY_DELIVERY.__contains__)
        """The cases in the client's order; those whose bill is not known beforehand come last."""
        self._process = process

    @classmethod
    async def start(cls, client: Client) -> "ClientProcess":
        if client.environment == "typescript":  # modules are found beside the script
            for script in TYPESCRIPT.glob("*.ts"):
                shutil.copy(script, BUILT / "typescript")
        log = BUILT / "logs" / f"{client.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as stderr:
            process = await asyncio.create_subprocess_exec(
                *client.command(),
                cwd=ROOT,
                env=dict(client.variables()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                limit=1 << 24,
            )
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), CASE_TIMEOUT_S)
        if not line:
            raise RuntimeError(f"{client.name} did not start; see {log}")
        return cls(client, process, json.loads(line)["cases"])

    async def run(self, case: str, target: dict[str, str]) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"case": case, **target}).encode() + b"\n")
        await process.stdin.drain()
        try:
            line = await asyncio.wait_for(process.stdout.readline(), CASE_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            line = b""
        if not line:
            await process.wait()
            self._process = (await ClientProcess.start(self.client))._process
            return {"error": {"class": "the client hangs or dies", "status": None, "text": "", "body": ""}}
        outcome: dict[str, Any] = json.loads(line)
        return outcome

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


async def run_cases(process: ClientProcess, upstream: Upstream, model: str, target: dict[str, str]) -> dict[str, Run]:
    """Every case once. `model`: how the vendor knows the client's calls."""
    runs: dict[str, Run] = {}
    for case in process.cases:
        before = len(upstream.served(model))
        outcome = await process.run(case, target)
        runs[case] = Run(outcome, upstream.served(model)[before:])
    return runs


async def run_through(stage: Stage, process: ClientProcess, provider: Provider, billed_before: int) -> dict[str, Run]:
    """Every case through the slug, with what it was billed."""
    client = process.client
    target = {
        "base_url": stage.product.proxy,
        "api_key": stage.keys[client.name],
        "model": slug_of(client.name),
        "turn": f"{client.name}-{provider.name}".replace(", ", "-").replace(" ", "-"),
    }
    runs = await run_cases(process, stage.upstreams[provider.name], client.name, target)
    answered = sum(run.answered for case, run in runs.items() if case not in BY_DELIVERY)

    async def enough() -> list[dict[str, int]] | None:
        billed = await stage.billed(client)
        return billed if len(billed) >= billed_before + answered else None

    try:
        billed = await eventually(enough, "all events", BILLING_PATIENCE_S, every_s=0.3)
    except AssertionError:
        billed = await stage.billed(client)
    rest = [_tokens(event) for event in billed[billed_before:]]
    for run in (runs[case] for case in process.cases):
        run.billed = rest[: run.answered]
        rest = rest[run.answered :]
    return runs


def _tokens(event: dict[str, int]) -> Tokens:
    return Tokens(input=event["inputTokens"], output=event["outputTokens"], cached_input=event["cachedInputTokens"])


async def run_all(clients: list[Client], providers: list[Provider]) -> Results:
    results: Results = {client.name: {} for client in clients}
    with tempfile.TemporaryDirectory() as directory:
        async with staged(Path(directory), clients) as stage:
            processes = await limited(map(ClientProcess.start, clients))
            try:
                names = [client.name for client in clients]
                runs = await limited(run_direct(stage, process) for process in processes)
                direct = dict(zip(names, runs, strict=True))
                for provider in providers:
                    await stage.point(provider)
                    await _through_provider(stage, processes, provider, direct, results)
                    (BUILT / "results.json").write_text(json.dumps(results, default=asdict, ensure_ascii=False))
            finally:
                for process in processes:
                    await process.stop()
    return results


async def limited(steps: Iterable[Awaitable[T]]) -> list[T]:
    """The results of all steps, a few of them at a time."""
    turns = asyncio.Semaphore(AT_A_TIME)

    async def one(step: Awaitable[T]) -> T:
        async with turns:
            return await step

    return await asyncio.gather(*map(one, steps))


async def run_direct(stage: Stage, process: ClientProcess) -> dict[str, Run]:
    slug = slug_of(process.client.name)
    target = {
        "base_url": stage.direct.server.url,
        "api_key": "sk-direct",
        "model": slug,
        "turn": f"{process.client.name}-direct",
    }
    runs = await run_cases(process, stage.direct, slug, target)
    for case, run in runs.items():
        if problems := [served.problem for served in run.served if served.problem]:
            print(f"{process.client.name}, {case}: the client's own vendor refuses it: {problems[0]}", file=sys.stderr)
        elif "error" in run.outcome and not case.startswith(("error", "stream breaks")):
            print(f"{process.client.name}, {case}: fails directly: {run.outcome['error']}", file=sys.stderr)
    return runs


async def _through_provider(
    stage: Stage,
    processes: list[ClientProcess],
    provider: Provider,
    direct: dict[str, dict[str, Run]],
    results: Results,
) -> None:
    async def one(process: ClientProcess) -> None:
        client = process.client
        before = len(await stage.billed(client))
        runs = await run_through(stage, process, provider, before)
        for case, run in runs.items():
            verdict = cell(case, client.dialect.name, direct[client.name][case], run)
            results[client.name].setdefault(case, {})[provider.name] = verdict
        print(_summary(client, provider, results), flush=True)

    await limited(map(one, processes))


def _summary(client: Client, provider: Provider, results: Results) -> str:
    cells = {case: by_provider[provider.name] for case, by_provider in results[client.name].items()}
    counts = [f"{sum(one.verdict == verdict for one in cells.values())} {verdict}" for verdict in VERDICTS]
    lines = [f"{client.name} → {provider.name}: {', '.join(counts)}"]
    lines += [f"  {case}: {one.verdict} {one.detail}" for case, one in cells.items() if one.verdict == "FAILS"]
    lines += [f"  {case}: refused {one.detail}" for case, one in cells.items() if one.verdict == "refused"]
    return "\n".join(lines)


VERDICTS = ("passes", "translated", "refused", "FAILS")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", help="names of clients, separated by commas")
    parser.add_argument("--providers", help="names of providers, separated by semicolons")
    options = parser.parse_args()
    clients = [one for one in CLIENTS if options.only is None or one.name in options.only.split(",")]
    providers = [one for one in PROVIDERS if options.providers is None or one.name in options.providers.split(";")]
    results = asyncio.run(run_all(clients, providers))
    if options.only is None and options.providers is None:
        PAGE.write_text(page(results))
    cells = [one for cases in results.values() for by_provider in cases.values() for one in by_provider.values()]
    counts = [f"{sum(one.verdict == verdict for one in cells)} {verdict}" for verdict in VERDICTS]
    print(f"{len(cells)} cells: {', '.join(counts)}")
    return int(any(one.verdict == "FAILS" for one in cells))


if __name__ == "__main__":
    sys.exit(main())
