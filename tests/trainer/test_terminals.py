"""Checks which terminals a trainer connects, and how each ends. Shells and control are scripted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from policy.training.reports import WantedTerminal
from tests.waiting import eventually
from trainer import terminals
from trainer.backend import BackendAwayError, NoTerminalError
from trainer.control import ControlLostError, Size
from trainer.terminals import Terminals

ONE = WantedTerminal("one", "job", 1, 0)
TWO = WantedTerminal("two", "job", 1, 1)


@dataclass
class Shell:
    """A shell that writes what a test gives it, and notes what it gets."""

    writes: "asyncio.Queue[bytes]" = field(default_factory=asyncio.Queue)
    typed: bytes = b""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    reads: asyncio.Event = field(default_factory=asyncio.Event)
    is_closed: bool = False

    async def read(self) -> bytes:
        return await self.writes.get()

    async def write(self, typed: bytes) -> None:
        await self.reads.wait()
        self.typed += typed

    async def resize(self, columns: int, rows: int) -> None:
        self.sizes.append((columns, rows))

    async def close(self) -> None:
        self.is_closed = True


@dataclass
class Control:
    """Control's side of one terminal."""

    sends: "asyncio.Queue[bytes | Size | None]" = field(default_factory=asyncio.Queue)
    got: list[bytes] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)
    is_lost: bool = False

    async def receive(self) -> bytes | Size | None:
        return await self.sends.get()

    async def send(self, data: bytes) -> None:
        if self.is_lost:
            raise ControlLostError
        self.got.append(data)

    async def close(self, reason: str | None) -> None:
        self.reasons.append(reason)


class Stage:
    """A trainer's terminals between scripted shells and a scripted control."""

    def __init__(self) -> None:
        self.shells: list[Shell] = []
        self.dialled: dict[str, Control] = {}
        self.refusal: Exception | None = None
        self.is_control_away = False
        self.terminals = Terminals(self, self)  # type: ignore[arg-type]  # the part of a backend that it uses

    async def terminal(self, job_id: str, attempt: int, rank: int) -> Shell:
        if self.refusal is not None:
            raise self.refusal
        self.shells.append(Shell())
        return self.shells[-1]

    @asynccontextmanager
    async def dial(self, terminal_id: str) -> AsyncIterator[Control]:
        if self.is_control_away:
            raise ControlLostError
        assert terminal_id not in self.dialled, "dialled twice"
        self.dialled[terminal_id] = Control()
        yield self.dialled[terminal_id]

    async def opened(self) -> tuple[Shell, Control]:
        self.terminals.connect([ONE])
        await eventually(lambda: self.shells)
        return self.shells[0], self.dialled["one"]


async def closed(shell: Shell) -> None:
    await eventually(lambda: shell.is_closed, "the shell is closed")


async def test_each_wanted_terminal_is_connected_once() -> None:
    stage = Stage()
    for state in ([ONE], [ONE, TWO], [ONE, TWO], [TWO]):
        stage.terminals.connect(state)
    await eventually(lambda: len(stage.shells) == 2)
    await stage.terminals.close()
    assert all(shell.is_closed for shell in stage.shells)


async def test_a_terminal_that_ended_is_not_connected_again_while_control_still_asks_for_it() -> None:
    stage = Stage()
    shell, control = await stage.opened()
    shell.writes.put_nowait(b"")
    await closed(shell)
    await eventually(lambda: control.reasons == [None])
    stage.terminals.connect([ONE])
    assert len(stage.shells) == 1


async def test_bytes_and_sizes_reach_the_other_side_in_order() -> None:
    stage = Stage()
    shell, control = await stage.opened()
    shell.reads.set()
    for item in (b"a", Size(80, 24), b"b"):
        control.sends.put_nowait(item)
    shell.writes.put_nowait(b"x" * 65_537)
    await eventually(lambda: shell.typed == b"ab" and len(control.got) == 2)
    assert shell.sizes == [(80, 24)]
    assert [len(message) for message in control.got] == [65_536, 1]
    await stage.terminals.close()


async def test_the_end_of_controls_connection_closes_the_shell_although_it_reads_nothing() -> None:
    stage = Stage()
    shell, control = await stage.opened()
    control.sends.put_nowait(b"typed")
    control.sends.put_nowait(None)
    await closed(shell)


async def test_typing_more_than_the_shell_reads_ends_the_terminal() -> None:
    stage = Stage()
    shell, control = await stage.opened()
    for _ in range(3):
        control.sends.put_nowait(b"x" * (terminals.MAX_TYPED_BYTES // 2))
    await closed(shell)
    await eventually(lambda: control.reasons == ["More was typed than the shell reads."])


async def test_a_lost_control_closes_the_shell() -> None:
    stage = Stage()
    shell, control = await stage.opened()
    control.is_lost = True
    shell.writes.put_nowait(b"written")
    await closed(shell)


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (NoTerminalError("the node has ended"), "the node has ended"),
        (BackendAwayError("no route"), "no route"),
        (NoTerminalError(), "There is no shell on this node."),
    ],
)
async def test_a_node_without_a_shell_is_told_to_control(refusal: Exception, reason: str) -> None:
    stage = Stage()
    stage.refusal = refusal
    stage.terminals.connect([ONE])
    await eventually(lambda: stage.dialled and stage.dialled["one"].reasons == [reason])


async def test_no_shell_is_opened_for_a_browser_that_left() -> None:
    stage = Stage()
    stage.is_control_away = True
    stage.terminals.connect([ONE])
    await stage.terminals.close()
    assert stage.shells == []


async def test_workspace_has_a_share_of_the_open_terminals_and_gets_the_place_of_one_that_ended() -> None:
    stage = Stage()
    many = [WantedTerminal(str(number), "job", 1, 0, "hostile") for number in range(terminals.MAX_OPEN)]
    share = terminals.MAX_OPEN * 3 // 4
    stage.terminals.connect(many)
    await eventually(lambda: len(stage.shells) == share)
    stage.shells[0].writes.put_nowait(b"")
    await closed(stage.shells[0])
    stage.terminals.connect(many)
    await eventually(lambda: len(stage.shells) == share + 1)
    stage.terminals.connect([*many, WantedTerminal("of another", "job", 1, 0, "other")])
    await eventually(lambda: "of another" in stage.dialled)
    await stage.terminals.close()
