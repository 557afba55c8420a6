"""The moves that the launcher makes are moves that control allows."""

import pytest

from launcher.statuses import FAILED, LOADING_MODEL, WAKING_UP, moves
from policy.deployments import MOVES_FROM_OUTSIDE, NOT_SERVING, PARKING


@pytest.mark.parametrize(
    ("present", "target", "expected"),
    [
        ("SCALED_TO_ZERO", LOADING_MODEL, (WAKING_UP, LOADING_MODEL)),
        ("DEPLOYING", WAKING_UP, (WAKING_UP,)),
        ("WAKING_UP", LOADING_MODEL, (LOADING_MODEL,)),
        ("DEPLOYING", FAILED, (WAKING_UP, LOADING_MODEL, FAILED)),
        ("LOADING_MODEL", FAILED, (FAILED,)),
        ("LOADING_MODEL", WAKING_UP, ()),
        ("FAILED", LOADING_MODEL, ()),
        ("FAILED", FAILED, ()),
        ("ACTIVE", LOADING_MODEL, ()),
        ("INACTIVE", FAILED, ()),
    ],
)
def test_moves_lead_from_the_present_status_to_the_wanted_one(
    present: str, target: str, expected: tuple[str, ...]
) -> None:
    assert moves(present, target) == expected


@pytest.mark.parametrize("present", sorted(PARKING | NOT_SERVING))
@pytest.mark.parametrize("target", [WAKING_UP, LOADING_MODEL, FAILED])
def test_control_allows_every_move(present: str, target: str) -> None:
    for status in moves(present, target):
        assert status in MOVES_FROM_OUTSIDE[present]
        present = status
