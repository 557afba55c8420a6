"""A worker whose journal cannot be written sends nothing upstream, and goes on when the disk is back."""

import errno
import os

import pytest

from proxy.accounting.journal_records import Kind
from tests.proxy.budget.canned_worker import CannedWorker, canned_worker

PWRITE = os.pwrite


def refuse(fd: int, data: bytes, offset: int) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def refuse_closes(fd: int, data: bytes, offset: int) -> int:
    return refuse(fd, data, offset) if Kind.CLOSE.magic in data else PWRITE(fd, data, offset)


def statuses(served: list[bytes]) -> set[bytes]:
    return {answer.split(b" ", 2)[1] for answer in served}


async def answers(worker: CannedWorker, calls: int) -> list[bytes]:
    return [answer for caller in await worker.serve(calls) for answer in caller.answers]


@pytest.mark.parametrize("calls_before", [1, 5])  # then each call is shaped by an earlier one
def test_calls_of_a_tick_whose_write_fails_are_503_and_send_nothing(
    monkeypatch: pytest.MonkeyPatch, calls_before: int
) -> None:
    with canned_worker() as (runner, worker):
        assert statuses(runner.run(answers(worker, calls_before))) == {b"200"}
        worker.egress.latest = b""
        connected = worker.egress.connected
        with monkeypatch.context() as full:
            full.setattr(os, "pwrite", refuse)
            assert statuses(runner.run(answers(worker, 1))) == {b"503"}
        assert worker.egress.latest == b""
        assert worker.journal.pending == 0
        worker.journal._retry_write_at = 0.0
        assert statuses(runner.run(answers(worker, 2))) == {b"200"}
        assert worker.egress.connected == connected, "the connections were not kept"
        assert worker.journal.troubles == ()


def test_calls_whose_close_is_refused_are_502_and_do_not_keep_others_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Opens of these calls stay in the journal: the calls are billed as if their worker had died."""
    with canned_worker() as (runner, worker):
        assert statuses(runner.run(answers(worker, 5))) == {b"200"}
        with monkeypatch.context() as full:
            full.setattr(os, "pwrite", refuse_closes)
            assert b"502" in statuses(runner.run(answers(worker, 1)))
        assert "cannot be written: No space left on device" in caplog.text
        worker.journal._retry_write_at = 0.0
        assert statuses(runner.run(answers(worker, 2))) == {b"200"}
        assert worker.journal.troubles == ()
