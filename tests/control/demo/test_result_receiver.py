"""The demo's receiver of results, whose address the product is told long before it serves."""

import contextlib
from pathlib import Path

from control.demo.result_receiver import ResultReceiver
from runtime.child_process import can_bind


def test_nobody_takes_its_port_before_it_serves(tmp_path: Path) -> None:
    with contextlib.closing(ResultReceiver(tmp_path)) as receiver:
        assert not can_bind("127.0.0.1", int(receiver.link.rpartition(":")[2]))
