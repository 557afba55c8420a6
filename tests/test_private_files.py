"""The planes share no code that touches the disk, so one file stands in both: here they are held together."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "edges/private_files.py"


def test_both_planes_close_files_in_the_same_way() -> None:
    control, proxy = ((ROOT / plane / NAME).read_text() for plane in ("control", "proxy"))
    assert control.replace(f"proxy/{NAME}", "") == proxy.replace(f"control/{NAME}", "").replace(
        "for the data directory", "for the journals"
    )
