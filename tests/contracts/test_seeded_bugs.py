"""The seeds of `tests/seeded_bugs.txt` fit the code as it is, and seeding tells a bug from none. Soaking runs all."""

from pathlib import Path

import pytest

from tests.seeded_bugs import Edit, Seed, SeedDoesNotFitError, all_seeds, copy_sources, killer_of, plant

SEEDS = all_seeds()

QUICK = ("tests/proxy/test_checks.py",)


@pytest.mark.parametrize("one", SEEDS, ids=lambda one: one.name)
def test_a_seed_fits(one: Seed, tmp_path: Path) -> None:
    copy_sources(tmp_path)
    plant(one, tmp_path)


def test_a_seed_that_no_longer_fits_is_told(tmp_path: Path) -> None:
    copy_sources(tmp_path)
    with pytest.raises(SeedDoesNotFitError):
        plant(Seed("no such place", (Edit("policy/windows.py", "no such text", ""),)), tmp_path)


def test_a_bug_is_killed_and_a_harmless_change_survives() -> None:
    bug = next(one for one in SEEDS if one.name == "a memory of refusals a millisecond too long")
    assert killer_of(bug, QUICK) is not None
    harmless = Seed("harmless", (Edit("policy/windows.py", "DAY_MS = 86_400_000", "DAY_MS = 86400000"),))
    assert killer_of(harmless, QUICK) is None


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("one", SEEDS, ids=lambda one: one.name)
def test_the_suite_kills(one: Seed) -> None:
    assert killer_of(one) is not None


def test_there_are_seeds_in_all_parts() -> None:
    assert len(SEEDS) >= 40
    seeded = {edit.path.rpartition("/")[2] for one in SEEDS for edit in one.edits}
    assert seeded >= {"take.lua", "settle.lua", "log.lua", "admission.py", "windows.py", "counters.py", "settling.py"}
