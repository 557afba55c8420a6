"""compose.yaml's services as processes of this machine, under load. Each is killed once; every call is accounted for.

`__main__.py` runs this program in a network namespace of its own.
See CONTRIBUTING.md#image-and-compose-file-without-docker.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.deploy.without_docker.compose import Service, read_variables, services
from tests.deploy.without_docker.containers import Container, Programs, empty, start_in_order
from tests.deploy.without_docker.image import Image
from tests.deploy.without_docker.image_trial import try_alone
from tests.deploy.without_docker.network import HERE, SUBNET, address_of, connect
from tests.deploy.without_docker.progress import Say, clock
from tests.deploy.without_docker.stock_images import WITHOUT_A_PACKAGE, programs_of
from tests.deploy.without_docker.systems import StepError
from tests.journeys.billing_faults import Death
from tests.journeys.books import SLUG, Books, Comparison, create_groups
from tests.journeys.callers import Callers, CallRecord
from tests.journeys.product import OperatorClient
from tests.upstream import ScriptedUpstream
from tests.upstream.questions import answer_question

CALLERS = 10
SEED = 7
DOWN_S = 2.0
CALM_S = 3.0
"""Seconds for which a killed service stays away, and the others are watched after it is back."""
EVENTS_WITHIN_S = 120.0
"""The holdback of a minute, and as much again."""
UNNOTICED = frozenset(("postgres", "control-1", "control-2", "prometheus", "alertmanager"))
"""Callers must not notice the death of these."""
EXPECTED_CODES = frozenset(("", "RATE_LIMITED"))
SCRAPE_WITHIN_S = 60.0


@dataclass
class Site:
    """The running services by name, and the addresses that a user of them knows."""

    containers: dict[str, Container]
    hosts_file: Path

    @property
    def proxy(self) -> str:
        return f"http://{address_of('haproxy', self.hosts_file)}:8080"

    @property
    def control(self) -> str:
        return f"http://{address_of('haproxy', self.hosts_file)}:8081"

    @property
    def prometheus(self) -> str:
        return f"http://{address_of('prometheus', self.hosts_file)}:9090"

    def tollgate(self, *words: str) -> dict[str, str]:
        """Run a `tollgate` command in control's container; return the JSON that it prints."""
        return dict(json.loads(self.containers["control-1"].execute("tollgate", *words)))


def prepare(work: Path, image: Image, say: Say) -> Site:
    """Write the secrets, make the network, and describe a container for each service that Debian has a program for."""
    deploy = work / "context/deploy"
    run = empty(work / "run")
    subprocess.run((str(deploy / "new-secrets"),), check=True)
    variables = read_variables(deploy / ".env") | {"TOLLGATE_EGRESS_ALLOW": f"{SUBNET}.0/24"}
    all_services = services((deploy / "compose.yaml").read_text(), variables)
    for name in sorted(WITHOUT_A_PACKAGE & {service.name for service in all_services}):
        say(f"{name}: not run, Debian has no package of it")
    runnable = [service for service in all_services if service.name not in WITHOUT_A_PACKAGE]
    hosts_file = run / "hosts"
    connect([service.name for service in runnable], hosts_file)

    def container(service: Service) -> Container:
        is_ours = service.image.startswith("tollgate:")
        programs = Programs.of_image(image, service.command) if is_ours else programs_of(service, work / "services")
        return Container(service, programs, deploy, run, hosts_file)

    return Site({service.name: container(service) for service in runnable}, hosts_file)


@dataclass
class Trial:
    """Callers at a running site, and what each death did to them."""

    site: Site
    callers: Callers
    say: Say
    faults: list[str]
    deaths_of_redis: list[Death]

    async def kill_each_once(self) -> None:
        self.callers.start(CALLERS)
        await asyncio.sleep(CALM_S)
        for name, container in self.site.containers.items():
            first = len(self.callers.records)
            began = time.time()
            if name == "redis":
                self.deaths_of_redis.append(Death(began, began))
            container.running.kill()
            await asyncio.sleep(DOWN_S)
            container.start()
            took_s = await asyncio.to_thread(container.wait_until_healthy)
            await asyncio.sleep(CALM_S)
            self._judge(name, self.callers.records[first:], took_s)
        await self.callers.stop()

    def _judge(self, name: str, records: Sequence[CallRecord], took_s: float) -> None:
        ends = Counter(end_of(call) for call in records)
        self.say(f"{name} killed, back {took_s:.1f} s after its start: {dict(ends)}")
        noticed = ends.keys() - {"answered", "RATE_LIMITED"}
        if name in UNNOTICED and noticed:
            self.faults.append(f"callers noticed the death of {name}: {dict(ends)}")
        if not ends["answered"]:
            self.faults.append(f"no call was answered around the death of {name}")


def end_of(call: CallRecord) -> str:
    """Return how a call ended, in a word."""
    if call.tokens is not None:
        return "answered"
    return call.code or call.broken_by or f"status {call.status}"


async def trial(site: Site, say: Say) -> list[str]:
    """Bring the site into service as docs/deploying.md says, kill each service under load, and compare the books."""
    workspace = site.tollgate("workspace", "create", "acme", "--prefix", "acme")
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60))
    async with aiohttp.ClientSession() as session, ScriptedUpstream(host=HERE, default=answer_question) as upstream:
        operator = OperatorClient(session, site, workspace["api_key"])
        groups, keys = await create_groups(operator, upstream.url)
        callers = Callers(session, lambda: site.proxy, SLUG, keys, random.Random(SEED))
        run = Trial(site, callers, say, [], [])
        await run.kill_each_once()
        books = Books(operator, groups, began)
        say(f"{len(callers.records)} calls made; waiting for their events (the holdback is a minute)")
        comparison = await _compared(books, run)
        say(comparison.summary)
        return run.faults + comparison.faults + await faults_of_prometheus(session, site, say)


async def _compared(books: Books, run: Trial) -> Comparison:
    """The comparison without faults, or the last one before EVENTS_WITHIN_S have passed."""
    give_up_at = time.monotonic() + EVENTS_WITHIN_S
    while True:
        comparison = await Comparison.of(books, run.callers.records, run.deaths_of_redis)
        if not comparison.faults or time.monotonic() > give_up_at:
            return comparison
        await asyncio.sleep(2)


async def faults_of_prometheus(session: aiohttp.ClientSession, site: Site, say: Say) -> list[str]:
    """Targets that are not scraped, and rules that it could not evaluate."""
    give_up_at = time.monotonic() + SCRAPE_WITHIN_S
    while True:
        targets = (await _asked(session, f"{site.prometheus}/api/v1/targets"))["activeTargets"]
        away = [
            f"Prometheus cannot scrape {one['scrapeUrl']}: {one['lastError']}"
            for one in targets
            if one["health"] != "up"
        ]
        if not away or time.monotonic() > give_up_at:
            break
        await asyncio.sleep(2)
    groups = (await _asked(session, f"{site.prometheus}/api/v1/rules"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    say(f"Prometheus: {len(targets) - len(away)} of {len(targets)} targets are up, {len(rules)} rules are evaluated")
    broken = [f"rule {rule['name']}: {rule['lastError']}" for rule in rules if rule["health"] == "err"]
    managers = (await _asked(session, f"{site.prometheus}/api/v1/alertmanagers"))["activeAlertmanagers"]
    silent = [] if managers else ["Prometheus knows no Alertmanager"]
    return away + broken + silent + ([] if rules and targets else ["Prometheus has no rules or no targets"])


async def _asked(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(url) as answer:
        return dict((await answer.json())["data"])


def stop_all(site: Site, say: Say) -> list[str]:
    """Stop each before those that it needs. A fault for each that does not end as it should."""
    statuses = {name: container.stop() for name, container in reversed(site.containers.items())}
    say(f"stopped in order; exit statuses: {statuses}")
    ours = (name for name in statuses if name.startswith(("control", "proxy")))
    return [f"{name} ended with status {statuses[name]} when it was stopped" for name in ours if statuses[name] != 0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    work = parser.parse_args().work
    say = clock()
    image = Image.read(work / "image.json")
    site = prepare(work, image, say)
    try:
        try_alone(image, work / "run", say)
        start_in_order(list(site.containers.values()), say)
        faults = asyncio.run(trial(site, say))
        faults += stop_all(site, say)
    except StepError as error:
        faults = [str(error)]
    finally:
        for container in site.containers.values():
            container.end()
    for fault in faults:
        say(f"FAULT {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
