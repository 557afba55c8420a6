"""Whatever fails, in whatever order: once all is well again, every job ends, once, with its whole log."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.training.job_spec import DEDICATED, SPOT
from policy.training.resources import Host, NodeResources
from policy.training.statuses import COMPLETED, ENDED, Outcome, Phase
from tests.fakes.training_backend import FakeBackend
from tests.trainer.world import World, without_pauses

HOSTS = (Host("a", 4000, 8192, 4), Host("b", 2000, 8192, 2))
PROGRAMS = (("echo x", "echo y"), ("echo x", "exit 1"), ("echo x", "sleep 1"), ("sleep 1",))
EVENTS = (
    "create",
    "create",
    "create",
    "stop",
    "delete",
    "print",
    "end",
    "control goes",
    "control comes",
    "backend goes",
    "backend comes",
    "trainer dies",
    "claim is lost",
    "host loses a job",
    "jobs turn deaf",
    "jobs hear again",
    "output is refused",
    "output is taken",
    "backend turns slow",
    "backend turns fast",
    "round",
    "round",
)


class Chaos:
    """Applies events; what does not apply now does nothing."""

    def __init__(self) -> None:
        self.world = World(FakeBackend(HOSTS))
        self.created = 0

    async def apply(self, event: str, number: int) -> None:
        world = self.world
        control = self.world.control
        backend = self.world.backend
        jobs = list(control.jobs.values())
        job = jobs[number % len(jobs)] if jobs else None
        attempts = [one for one in backend.attempts.values() if one.phase is not Phase.ENDED]
        attempt = attempts[number % len(attempts)] if attempts else None
        match event:
            case "create":
                self._create(number)
            case "stop" if job and job.status not in ENDED:
                control.stop(job.id)
            case "delete" if job and job.status in ENDED and not job.is_deleted:
                control.delete(job.id)
            case "print" if attempt:
                attempt.print("more")
            case "end" if attempt:
                attempt.end(Outcome.COMPLETED)
            case "control goes":
                control.away = "gone"
            case "control comes":
                control.away = None
            case "backend goes":
                backend.away = "gone"
            case "backend comes":
                backend.away = None
            case "trainer dies":
                await world.kill()
            case "claim is lost":
                control.lose_next_claim = True
            case "host loses a job" if attempt:
                del backend.attempts[attempt.job.job_id]
            case "jobs turn deaf":
                backend.is_deaf = True
            case "jobs hear again":
                self._hear()
            case "backend turns slow":
                backend.turns = number
            case "backend turns fast":
                backend.turns = 0
            case "output is refused":
                control.takes_output = False
            case "output is taken":
                control.takes_output = True
        await world.rounds(1 + number % 2)
        self.check()

    def _create(self, number: int) -> None:
        self.created += 1
        resources = NodeResources(1000 * (1 + number % 4), 512)
        availability = SPOT if number % 3 == 0 else DEDICATED
        program = PROGRAMS[number % len(PROGRAMS)]
        nodes = 1 if resources.millicpu > 2000 else 1 + number % 2
        self.world.control.create(
            f"j{self.created}", *program, availability=availability, resources=resources, node_count=nodes
        )

    def _hear(self) -> None:
        backend = self.world.backend
        backend.is_deaf = False
        for attempt in backend.attempts.values():
            if attempt.stop_outcome and attempt.phase is not Phase.ENDED:
                backend.finish_stop(attempt.job.job_id)

    def check(self) -> None:
        sizes = {host.name: host.millicpu for host in HOSTS}
        assert all(size <= sizes[name] for name, size in self.world.used().items()), "a host is overcommitted"
        for job_id, statuses in self.world.control.statuses.items():
            assert all(status not in ENDED for status in statuses[:-1]), f"{job_id} moved after its end: {statuses}"

    async def heal(self) -> None:
        """Everything is there again. Jobs that would sleep for ever end."""
        world = self.world
        world.control.away = world.backend.away = None
        world.backend.turns = 0
        world.control.takes_output = True
        world.control.lose_next_claim = False
        self._hear()
        for _ in range(200):
            await world.rounds()
            self.check()
            for attempt in world.backend.attempts.values():
                if attempt.phase is Phase.RUNNING:
                    attempt.end(Outcome.COMPLETED)
            jobs = world.control.jobs.values()
            if all(job.status in ENDED and not job.is_deleted for job in jobs) and not world.backend.attempts:
                return
        raise AssertionError(f"not at rest: {world.control.statuses}, {world.backend.calls}")

    def check_ends(self) -> None:
        control = self.world.control
        for job in control.jobs.values():
            stamps = [line.timestamp_ns for line in control.lines.get(job.id, [])]
            assert len(stamps) == len(set(stamps)), f"{job.id} has lines twice"
            says_x = "echo x" in control.specs[job.id].start_commands
            if says_x and job.status == COMPLETED:
                assert "x" in control.log_of(job.id)[: control.lines_at_end[job.id]], job.id


events = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 60)), max_size=40)


@settings(max_examples=100, deadline=None)
@given(events)
def test_every_job_ends_once_with_its_whole_log_and_leaves_nothing_behind(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        chaos = Chaos()
        for event, number in steps:
            await chaos.apply(event, number)
        await chaos.heal()
        chaos.check_ends()
        await chaos.world.kill()

    with pytest.MonkeyPatch.context() as patch:
        without_pauses(patch.setattr)
        asyncio.run(run())
