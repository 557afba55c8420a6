"""Each seed of `tests/seeded_bugs.txt` fits the sources, and the suite kills each seeded bug.

Seeds quote source lines, so that a rename breaks them: change the quote with the line. The runs with a planted bug are
in the soak.
"""

import shutil
from pathlib import Path

import pytest

from tests.seeded_bugs import ROOT, Edit, Seed, SeedDoesNotFitError, all_seeds, killer_of, plant

SEEDS = all_seeds()

QUICK = ("tests/proxy/edges/redis/test_admission_requests.py",)


def test_seed_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("ONE = 1\n")
    with pytest.raises(SeedDoesNotFitError):
        plant(Seed("no such line", (Edit("module.py", "TWO = 2\n", ""),)), tmp_path)


@pytest.mark.parametrize("one", SEEDS, ids=lambda one: one.name)
def test_seed_fits_the_sources(one: Seed, tmp_path: Path) -> None:
    for edit in one.edits:
        copy = tmp_path / edit.path
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / edit.path, copy)
    plant(one, tmp_path)


@pytest.mark.soak
def test_bug_is_killed_and_harmless_change_survives() -> None:
    bug = next(one for one in SEEDS if one.name == "a memory of refusals a millisecond too long")
    assert killer_of(bug, QUICK) is not None
    harmless = Seed("harmless", (Edit("policy/limits/windows.py", "DAY_MS = 86_400_000", "DAY_MS = 86400000"),))
    assert killer_of(harmless, QUICK) is None


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("one", SEEDS, ids=lambda one: one.name)
def test_suite_kills_the_seeded_bug(one: Seed) -> None:
    assert killer_of(one) is not None


@pytest.mark.soak
def test_every_part_of_the_counters_has_seeds() -> None:
    assert len(SEEDS) >= 40
    seeded = {edit.path.rpartition("/")[2] for one in SEEDS for edit in one.edits}
    assert seeded >= {
        "take.lua",
        "settle.lua",
        "log.lua",
        "admission.py",
        "windows.py",
        "counters.py",
        "settlement_sender.py",
    }
