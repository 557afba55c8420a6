"""Shells in a browser: a real control plane, real WebSockets, a trainer's terminals and real pseudo-terminals."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType, WSServerHandshakeError
from aiohttp.web import WebSocketResponse

from control.api.session_pages import relay
from control.api.session_pages.pairing import MAX_OPEN, MAX_PER_SESSION, TERMINALS, Terminals, TooManyTerminalsError
from control.resources.training.sessions import find_session
from policy.training.reports import WantedTerminal
from policy.training.statuses import COMPLETED, Outcome
from tests.contracts.training.backends import Control, claimed, no_checkpoints, printed, settings, started
from tests.contracts.training.shells import Shell, running_shell
from tests.control.conftest import migrated_file, sqlite_plane, sqlite_url
from tests.control.plane import TOKEN, ControlPlane
from tests.control.training_jobs import RunningJob, running_job
from tests.waiting import eventually, until_still
from trainer.backend import Backend, NoTerminalError
from trainer.edges.local import LocalBackend
from trainer.edges.terminal_socket import TerminalDialler
from trainer.terminals import Terminals as TrainerTerminals

__all__ = ["migrated_file", "sqlite_plane", "sqlite_url"]

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass
class ShellBackend:
    """The part of a backend that opens shells: each in this directory, with the environment of a node."""

    directory: Path
    stack: AsyncExitStack
    calls: list[tuple[str, int, int]] = field(default_factory=list)
    refusal: str | None = None

    async def terminal(self, job_id: str, attempt: int, rank: int) -> Shell:
        self.calls.append((job_id, attempt, rank))
        if self.refusal is not None:
            raise NoTerminalError(self.refusal)
        environment = {"TOLLGATE_JOB_ID": job_id, "TOLLGATE_NODE_RANK": str(rank)}
        return await self.stack.enter_async_context(running_shell(self.directory, environment))


@asynccontextmanager
async def trainer_of(plane: ControlPlane, backend: Backend) -> AsyncIterator[None]:
    """The terminals of a trainer, asked over and over for what control wants, as its sync loop does."""
    dialler = TerminalDialler(str(plane.client.make_url("")).rstrip("/"), TOKEN)
    trainer = TrainerTerminals(backend, dialler)

    async def sync() -> None:
        while True:
            trainer.connect(terminals_of(plane).wanted())
            await asyncio.sleep(0.01)

    loop = asyncio.create_task(sync())
    try:
        yield
    finally:
        loop.cancel()
        await trainer.close()
        await dialler.close()


@asynccontextmanager
async def running_trainer(plane: ControlPlane, directory: Path) -> AsyncIterator[ShellBackend]:
    async with AsyncExitStack() as stack:
        backend = ShellBackend(directory, stack)
        async with trainer_of(plane, backend):  # type: ignore[arg-type]  # the part that it uses
            yield backend


@dataclass
class Browser:
    """A person at a browser: keeps the session's cookie, and sends the Origin as browsers do."""

    plane: ControlPlane
    path: str
    cookie: str = ""

    @property
    def headers(self) -> dict[str, str]:
        origin = str(self.plane.client.make_url("")).rstrip("/")
        return {"Origin": origin} | ({"Cookie": f"tollgate-session={self.cookie}"} if self.cookie else {})

    async def get(self) -> tuple[int, str, Any]:
        async with self.plane.client.get(self.path, headers=self.headers) as answer:
            return answer.status, await answer.text(), answer.headers

    async def enter(self, code: str) -> tuple[int, str]:
        headers = self.headers | FORM
        options = {"data": f"code={code}", "allow_redirects": False}
        async with self.plane.client.post(self.path, headers=headers, **options) as answer:  # type: ignore[arg-type]
            if "tollgate-session" in answer.cookies:
                self.cookie = answer.cookies["tollgate-session"].value
                self.plane.client.session.cookie_jar.clear()
                assert "; HttpOnly; Path=/sessions/" in str(answer.cookies["tollgate-session"])
                assert "SameSite=Strict" in str(answer.cookies["tollgate-session"])
            return answer.status, await answer.text()

    @asynccontextmanager
    async def shell(self) -> AsyncIterator["Screen"]:
        path = f"{self.path}/terminal"
        async with self.plane.client.ws_connect(path, headers=self.headers, autoclose=True) as socket:
            yield Screen(socket)


@dataclass
class Screen:
    """The page of a shell, without drawing."""

    socket: ClientWebSocketResponse
    output: bytearray = field(default_factory=bytearray)
    ended: tuple[int, str] | None = None
    confirms: bool = True

    async def type(self, text: str) -> None:
        await self.socket.send_bytes(text.encode())

    async def resize(self, columns: Any, rows: Any) -> None:
        await self.socket.send_str(json.dumps({"type": "resize", "columns": columns, "rows": rows}))

    async def step(self) -> bool:
        """Take one message; False at the end."""
        message = await self.socket.receive()
        if message.type is WSMsgType.BINARY:
            self.output += message.data
            if self.confirms:
                await self.socket.send_str(json.dumps({"type": "read", "bytes": len(message.data)}))
            return True
        self.ended = (self.socket.close_code or 0, message.extra or "")
        return False

    async def until(self, text: str) -> str:
        searched = 0
        async with asyncio.timeout(20):
            while self.output.find(text.encode(), max(0, searched - len(text))) < 0:
                searched = len(self.output)
                assert await self.step(), f"ended: {self.ended}, {self.output[-1000:]!r}"
        return self.output.decode(errors="replace")

    async def end(self) -> tuple[int, str]:
        async with asyncio.timeout(20):
            while await self.step():
                pass
        assert self.ended is not None
        return self.ended


def terminals_of(plane: ControlPlane) -> Terminals:
    assert plane.client.app is not None
    return plane.client.app[TERMINALS]


async def opened(job: RunningJob, rank: int = 0) -> Browser:
    """A browser that has entered the code of a node's session."""
    codes = (await job.codes())[rank]
    browser = Browser(job.plane, f"/sessions/{codes['session_id']}")
    assert (await browser.enter(codes["auth_code"]))[0] == 303
    return browser


async def test_the_code_opens_a_shell_in_the_jobs_directory_and_environment(
    sqlite_plane: ControlPlane, tmp_path: Path
) -> None:
    job = await running_job(sqlite_plane, node_count=2)
    browser = await opened(job, rank=1)
    async with running_trainer(sqlite_plane, tmp_path) as backend, browser.shell() as screen:
        await screen.resize(100, 30)
        await screen.type("echo $TOLLGATE_JOB_ID-$TOLLGATE_NODE_RANK; pwd; stty size; echo Zoë-$((1+1))\n")
        output = await screen.until("Zoë-2")
    assert f"{job.record.id}-1\r\n{tmp_path}\r\n30 100\r\n" in output
    assert backend.calls == [(job.record.id, 1, 1)]
    assert terminals_of(sqlite_plane).browsers() == []


async def test_exit_ends_the_page_and_a_reload_opens_a_new_shell(sqlite_plane: ControlPlane, tmp_path: Path) -> None:
    browser = await opened(await running_job(sqlite_plane))
    async with running_trainer(sqlite_plane, tmp_path):
        for _ in range(2):
            async with browser.shell() as screen:
                await screen.type("exit\n")
                assert await screen.end() == (1000, "The shell has ended.")


async def test_closing_the_page_ends_the_shell_on_the_node(sqlite_plane: ControlPlane, tmp_path: Path) -> None:
    browser = await opened(await running_job(sqlite_plane))
    async with running_trainer(sqlite_plane, tmp_path):
        async with browser.shell() as screen:
            await screen.type("echo $$ > pid; echo noted-$((1+1))\n")
            await screen.until("noted-2")
        pid = (tmp_path / "pid").read_text().strip()
        await eventually(lambda: not Path(f"/proc/{pid}").exists(), "the shell ends")


async def test_the_end_of_the_job_ends_its_shells(sqlite_plane: ControlPlane, tmp_path: Path) -> None:
    job = await running_job(sqlite_plane)
    browser = await opened(job)
    async with running_trainer(sqlite_plane, tmp_path), browser.shell() as screen:
        await screen.type("echo here-$((1+1))\n")
        await screen.until("here-2")
        await job.becomes(status=COMPLETED)
        assert await screen.end() == (4001, "The session is over.")


async def test_a_shell_that_prints_without_end_waits_for_the_page(sqlite_plane: ControlPlane, tmp_path: Path) -> None:
    browser = await opened(await running_job(sqlite_plane))
    async with running_trainer(sqlite_plane, tmp_path), browser.shell() as screen:
        screen.confirms = False
        await screen.type("yes tollgate\n")
        reading = asyncio.create_task(screen.end())
        await eventually(lambda: len(screen.output) > relay.WINDOW_BYTES, "the window is full")
        await until_still(lambda: len(screen.output))
        reading.cancel()
        await asyncio.wait([reading])
        assert relay.WINDOW_BYTES < len(screen.output) < relay.WINDOW_BYTES + 2 * 65_536
        await screen.socket.send_str(json.dumps({"type": "read", "bytes": len(screen.output)}))
        screen.confirms = True
        await screen.type("\x03")
        await screen.until("^C")
        await screen.type("echo stopped-$((1+1))\n")
        await screen.until("stopped-2")


async def test_typing_more_than_the_shell_reads_ends_the_terminal(sqlite_plane: ControlPlane, tmp_path: Path) -> None:
    browser = await opened(await running_job(sqlite_plane))
    async with browser.shell() as screen:  # no trainer: nothing is read
        for _ in range(relay.MAX_TYPED_BYTES // 65_536 + 1):
            await screen.socket.send_bytes(b"x" * 65_536)
        assert (await screen.end())[1] == "More was typed than the shell reads."


async def test_a_node_that_does_not_answer_is_told(sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "JOIN_TIMEOUT_S", 0.1)
    browser = await opened(await running_job(sqlite_plane))
    async with browser.shell() as screen:
        assert await screen.end() == (4000, "The node did not answer within 10 s.")


async def test_a_node_without_a_shell_says_why(sqlite_plane: ControlPlane, tmp_path: Path) -> None:
    browser = await opened(await running_job(sqlite_plane))
    async with running_trainer(sqlite_plane, tmp_path) as backend:
        backend.refusal = "node 0 has ended"
        async with browser.shell() as screen:
            assert await screen.end() == (4000, "node 0 has ended")


async def test_a_session_has_a_bounded_number_of_shells(sqlite_plane: ControlPlane) -> None:
    browser = await opened(await running_job(sqlite_plane))
    async with AsyncExitStack() as stack:
        for _ in range(MAX_PER_SESSION):
            await stack.enter_async_context(browser.shell())
        async with browser.shell() as screen:
            assert "4 shells open" in (await screen.end())[1]


async def test_a_malformed_message_ends_the_terminal(sqlite_plane: ControlPlane) -> None:
    browser = await opened(await running_job(sqlite_plane))
    for message in (
        *("", "[]", "{", '{"type": "resize", "columns": 80}', '{"type": "resize", "columns": 0, "rows": 1}'),
        *('{"type": "resize", "columns": true, "rows": 1}', '{"type": "read", "bytes": 1}'),
        '{"type": "read", "bytes": -1}',
    ):
        async with browser.shell() as screen:
            await screen.socket.send_str(message)
            assert (await screen.end())[0] == 1008


async def test_a_message_above_the_bound_ends_the_terminal(sqlite_plane: ControlPlane) -> None:
    browser = await opened(await running_job(sqlite_plane))
    async with browser.shell() as screen:
        await screen.socket.send_bytes(b"x" * (relay.MAX_MESSAGE_BYTES + 1))
        assert (await screen.end())[0] == 1009


async def test_the_end_of_control_tells_the_page(sqlite_plane: ControlPlane) -> None:
    browser = await opened(await running_job(sqlite_plane))
    async with browser.shell() as screen:
        await eventually(lambda: terminals_of(sqlite_plane).wanted(), "the terminal waits")
        app = sqlite_plane.client.app
        assert app is not None
        await app.on_shutdown.send(app)
        assert (await screen.end())[0] == 1001


async def refused(browser: Browser, **headers: str) -> int:
    """The status of a shell that is not opened."""
    present_headers = {name: value for name, value in (browser.headers | headers).items() if value}
    with pytest.raises(WSServerHandshakeError) as refusal:
        await browser.plane.client.ws_connect(f"{browser.path}/terminal", headers=present_headers)
    return refusal.value.status


async def test_a_shell_needs_the_cookie_of_its_session_and_our_own_origin(sqlite_plane: ControlPlane) -> None:
    job = await running_job(sqlite_plane, node_count=2)
    browser = await opened(job)
    other = await opened(job, rank=1)
    assert [
        await refused(browser, Cookie=""),
        await refused(browser, Cookie=f"tollgate-session={other.cookie}"),
        await refused(browser, Origin=""),
        await refused(browser, Origin="https://evil.example"),
        await refused(browser, Origin="null"),
        await refused(Browser(sqlite_plane, "/sessions/session_none", browser.cookie)),
    ] == [403] * 6
    async with sqlite_plane.client.get(f"{browser.path}/terminal", headers=browser.headers) as answer:
        assert answer.status == 400


async def test_only_the_internal_token_joins_a_terminal_and_only_once(sqlite_plane: ControlPlane) -> None:
    browser = await opened(await running_job(sqlite_plane))
    async with browser.shell() as screen:
        terminals: Sequence[WantedTerminal] = await eventually(lambda: terminals_of(sqlite_plane).wanted(), "it waits")
        path = f"/internal/v1/training/terminals/{terminals[0].terminal_id}"
        assert len(terminals[0].terminal_id) == 64
        right = {"Authorization": f"Bearer {TOKEN}"}

        async def status(path: str, headers: dict[str, str]) -> int:
            with pytest.raises(WSServerHandshakeError) as refusal:
                await sqlite_plane.client.ws_connect(path, headers=headers)
            return refusal.value.status

        assert await status(path, {"Authorization": "Bearer wrong"}) == 401
        assert await status(path, {"Authorization": f"Bearer {sqlite_plane.key}"}) == 401
        assert await status(f"{path}0", right) == 404
        async with sqlite_plane.client.ws_connect(path, headers=right) as node:
            await eventually(lambda: not terminals_of(sqlite_plane).wanted(), "it is joined")
            assert await status(path, right) == 404
            await node.send_bytes(b"hello")
            await screen.until("hello")
        assert await screen.end() == (1000, "The shell has ended.")


async def test_a_trainer_that_vanishes_is_told_to_the_page(sqlite_plane: ControlPlane) -> None:
    browser = await opened(await running_job(sqlite_plane))
    async with browser.shell() as screen:
        terminals = await eventually(lambda: terminals_of(sqlite_plane).wanted(), "it waits")
        path = f"/internal/v1/training/terminals/{terminals[0].terminal_id}"
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
            await session.ws_connect(sqlite_plane.client.make_url(path))
            assert session.connector is not None
            await session.connector.close()
            assert await screen.end() == (4000, "The connection to the node was lost.")


async def test_a_node_of_the_local_backend_gives_a_shell_like_the_jobs_own(
    sqlite_plane: ControlPlane, tmp_path: Path
) -> None:
    control = Control(environment={"MINE": "é", "TOKEN": "s3cret"}, secrets=("s3cret",))
    backend = LocalBackend(settings(tmp_path), control.spend, no_checkpoints)
    await backend.open()
    try:
        job = await started(backend, claimed("echo up; sleep 1000", environment={"MINE": "é"}))
        await printed(backend, job, "up")
        browser = await opened(await running_job(sqlite_plane, id=job.job_id))
        async with trainer_of(sqlite_plane, backend), browser.shell() as screen:
            await screen.type(
                "echo $TOLLGATE_JOB_ID $MINE $TOKEN; pwd; env | grep -c TOLLGATE_; id -u; echo e-$((1+1))\n"
            )
            output = await screen.until("e-2")
            assert (
                f"{job.job_id} é s3cret\r\n{tmp_path}/jobs/{job.job_id}/1/files/node-0\r\n5\r\n{os.getuid()}\r\n"
                in output
            )
            await screen.type("echo $$ > pid; sleep 1000\n")
            pid = tmp_path / f"jobs/{job.job_id}/1/files/node-0/pid"
            await eventually(lambda: pid.exists() and pid.read_text(), "it notes its number")
            shell = Path(f"/proc/{pid.read_text().strip()}")
            await backend.stop(job.job_id, Outcome.STOPPED)
            assert await screen.end() == (1000, "The shell has ended.")
            await eventually(lambda: not shell.exists(), "it dies with the job")
        async with trainer_of(sqlite_plane, backend), browser.shell() as screen:
            assert await screen.end() == (4000, "the node has ended")
    finally:
        await backend.close()


async def test_shell_opens_while_another_workspace_holds_all_shells_that_it_can(
    sqlite_plane: ControlPlane, tmp_path: Path
) -> None:
    browser = await opened(await running_job(sqlite_plane))
    terminals = terminals_of(sqlite_plane)
    session = await find_session(sqlite_plane.store, browser.path.rsplit("/", 1)[1])
    assert session is not None
    with ExitStack() as stack:
        for number in range(MAX_OPEN * 3 // 4):
            terminal = terminals.opened("hostile", replace(session, id=str(number)), WebSocketResponse())
            stack.enter_context(terminal).node.set_result(WebSocketResponse())
        with pytest.raises(TooManyTerminalsError), terminals.opened("hostile", session, WebSocketResponse()):
            pass
        async with running_trainer(sqlite_plane, tmp_path), browser.shell() as screen:
            await screen.type("echo open-$((1+1))\n")
            await screen.until("open-2")
