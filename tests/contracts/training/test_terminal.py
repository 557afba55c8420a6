"""The shell of an interactive session: a real pseudo-terminal, as a runner serves it and a trainer uses it."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.contracts.training.shells import running_shell
from tests.waiting import eventually, until_still
from trainer.runner.terminal import (
    DATA,
    END,
    MAX_PAYLOAD_BYTES,
    RESIZE,
    FrameError,
    Frames,
    ShellSettings,
    end_frame,
    frames_of,
    resize_frame,
    serve,
)


async def test_shell_has_the_environment_and_the_directory_that_it_was_given(tmp_path: Path) -> None:
    async with running_shell(tmp_path, {"TOLLGATE_JOB_ID": "job_1"}) as shell:
        await shell.write(b"echo id=$TOLLGATE_JOB_ID at=$PWD term=$TERM secret=[$TOLLGATE_INTERNAL_TOKEN]\n")
        await shell.until(f"id=job_1 at={tmp_path} term=xterm-256color secret=[]".encode())


async def test_shell_is_a_terminal_of_the_size_that_was_asked_for(tmp_path: Path) -> None:
    async with running_shell(tmp_path) as shell:
        await shell.resize(132, 43)
        await shell.write(b"stty size; tty -s && echo is-a-$((1+1))tty\n")
        await shell.until(b"43 132")
        await shell.until(b"is-a-2tty")


async def test_text_beyond_ascii_passes_unchanged_both_ways(tmp_path: Path) -> None:
    async with running_shell(tmp_path) as shell:
        await shell.write("printf '<%s>\\n' 'Zoë ✓ 漢字'\n".encode())
        await shell.until("<Zoë ✓ 漢字>".encode())


async def test_every_byte_value_passes_unchanged(tmp_path: Path) -> None:
    (tmp_path / "all").write_bytes(bytes(range(256)))
    async with running_shell(tmp_path) as shell:
        await shell.write(b"stty raw; cat all; printf done-%d 1\n")
        assert bytes(range(256)) in await shell.until(b"done-1")


async def test_control_c_interrupts_the_command_and_not_the_shell(tmp_path: Path) -> None:
    async with running_shell(tmp_path) as shell:
        await shell.write(b"sh -c 'echo be-$((1+1)); exec sleep 1000'\n")
        await shell.until(b"be-2")
        await shell.write(b"\x03")
        await shell.until(b"^C")  # the terminal drops what was typed before it
        await shell.write(b"echo again-$((1+2))\n")
        await shell.until(b"again-3")


async def test_exit_ends_the_terminal_after_its_last_words(tmp_path: Path) -> None:
    async with running_shell(tmp_path) as shell:
        await shell.write(b"echo last-$((1+1)); exit\n")
        assert b"last-2" in await shell.rest()


async def test_exit_ends_the_terminal_although_a_process_in_the_background_keeps_it_open(tmp_path: Path) -> None:
    async with running_shell(tmp_path) as shell:
        await shell.write(b"(trap '' HUP; sleep 1000) & echo $! > pid; exit\n")
        await shell.rest()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # it outlived the shell; a runner ends it with the job


async def test_closing_the_connection_ends_the_shell_and_its_foreground(tmp_path: Path) -> None:
    ignores = "trap '' HUP TERM; echo $$ > {}"
    child = ignores.format("child") + "; sleep 1000"
    async with running_shell(tmp_path) as shell:
        await shell.write(f'{ignores.format("shell")}; sh -c "{child.replace("$", chr(92) + "$")}"\n'.encode())
        await eventually(lambda: _number_in(tmp_path / "child"), "the child starts")
        pids = [_number_in(tmp_path / name) for name in ("shell", "child")]
    await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the processes end")


async def test_closing_ends_a_shell_that_reads_nothing_of_what_was_typed(tmp_path: Path) -> None:
    async with running_shell(tmp_path) as shell:
        await shell.write(b"stty raw -echo; echo $$ > pid; sleep 1000\n")
        await eventually(lambda: _number_in(tmp_path / "pid"), "it sleeps")
        typing = asyncio.create_task(shell.write(b"x" * 4_000_000))
        await asyncio.wait([typing], timeout=0.1)
        assert not typing.done()
    await asyncio.wait([typing])
    await eventually(lambda: not Path(f"/proc/{_number_in(tmp_path / 'pid')}").exists(), "the shell ends")


async def test_shell_that_prints_without_end_waits_for_its_reader(tmp_path: Path) -> None:
    async with running_shell(tmp_path) as shell:
        await shell.write(b"i=0; while :; do i=$((i+1)); echo $i > count; printf '%1000s' x; done\n")
        count = tmp_path / "count"
        await eventually(lambda: _number_in(count), "it prints")
        await until_still(lambda: _number_in(count))
        stood_at = _number_in(count)
        assert stood_at < 1000  # a megabyte
        async with asyncio.timeout(20):
            while _number_in(count) == stood_at:
                await shell.read()


async def test_shell_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    async with running_shell(tmp_path / "missing") as shell:
        assert b"could not be started" in await shell.rest()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"D\xff\xff\xff\xff", b"R\0\0\0\1\0"])
async def test_rubbish_ends_the_shell(data: bytes, tmp_path: Path) -> None:
    async with running_shell(tmp_path) as shell:
        shell.raw(data)
        await shell.rest()


def _number_in(path: Path) -> int:
    """Return the number in the file; 0 while there is none."""
    return int((path.read_text() if path.exists() else "").strip() or 0)


def test_frames_are_found_however_the_bytes_arrive() -> None:
    stream = frames_of(b"x" * (MAX_PAYLOAD_BYTES + 1)) + resize_frame(80, 24) + end_frame()
    for step in (1, 7, len(stream)):
        frames = Frames()
        parsed_frames = [frame for at in range(0, len(stream), step) for frame in frames.feed(stream[at : at + step])]
        assert [kind for kind, _ in parsed_frames] == [DATA, DATA, RESIZE, END]
        assert b"".join(payload for kind, payload in parsed_frames if kind == DATA) == b"x" * (MAX_PAYLOAD_BYTES + 1)


def test_a_frame_of_an_unknown_kind_or_size_is_refused() -> None:
    for frame in (b"X\0\0\0\0", b"D\0\1\0\1"):
        with pytest.raises(FrameError):
            list(Frames().feed(frame))


def test_serving_a_connection_that_is_closed_already_ends(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    serve(theirs, ShellSettings(str(tmp_path), {"PATH": "/usr/bin:/bin"}))
    assert theirs.fileno() == -1
