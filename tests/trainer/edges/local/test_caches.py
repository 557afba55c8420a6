"""The moments at which a project's cache is looked at, and how much of it is shown."""

from pathlib import Path

import pytest

from trainer.edges.local.project_caches import caches
from trainer.edges.local.project_caches.cache_looks import EVERY_S, DueSummaries
from trainer.edges.local.project_caches.caches import ProjectCaches


def test_cache_is_due_after_each_end_and_now_and_then_while_a_job_runs() -> None:
    now_s = [100.0]
    looks = DueSummaries(lambda: now_s[0])
    assert looks.due({"a-1": "tp_1"}, {}) == ["tp_1"]
    assert looks.due({"a-1": "tp_1", "b-1": "tp_1"}, {}) == []
    now_s[0] += EVERY_S
    assert looks.due({"a-1": "tp_1", "b-1": "tp_1"}, {}) == ["tp_1"]
    assert looks.due({"a-1": "tp_1"}, {"b-1": "tp_1", "c-1": "tp_2"}) == ["tp_1", "tp_2"]
    assert looks.due({}, {"b-1": "tp_1", "c-1": "tp_2"}) == []
    assert DueSummaries(lambda: 0.0).due({}, {"b-1": "tp_1"}) == ["tp_1"], "the trainer was restarted"


def test_cache_is_looked_at_after_a_job_that_was_forgotten_before_anybody_looked() -> None:
    looks = DueSummaries(lambda: 0.0)
    looks.forget({"a-1": "tp_1"})
    assert looks.due({}, {}) == ["tp_1"]
    assert looks.due({}, {"b-1": "tp_1"}) == ["tp_1"]
    looks.forget({"b-1": "tp_1"})
    assert looks.due({}, {}) == [], "it was looked at since the end"


def test_summary_has_bounds_and_shows_the_upper_directories_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "MAX_ENTRIES", 3)
    own = ProjectCaches(tmp_path)
    own.make("tp_1", None)
    cache = own.directory("tp_1")
    (cache / "a" / "deep").mkdir(parents=True)
    for name in ("b", "c"):
        (cache / name).touch()
    summary = own.summary("tp_1")
    assert summary is not None
    assert [entry.path for entry in summary.entries] == ["a", "b", "c"]
    assert own.summary("tp_2") is None


def test_name_that_is_not_text_is_shown_and_a_deep_tree_ends(tmp_path: Path) -> None:
    own = ProjectCaches(tmp_path)
    own.make("tp_1", None)
    cache = own.directory("tp_1")
    (cache / b"\xff".decode("utf-8", "surrogateescape")).touch()
    (cache / "/".join("d" * 40)).mkdir(parents=True)
    summary = own.summary("tp_1")
    assert summary is not None
    assert "\ufffd" in [entry.path for entry in summary.entries]
    assert max(entry.path.count("/") for entry in summary.entries) == 31


@pytest.mark.parametrize("project_id", ["", "..", "a/b"])
def test_id_that_leads_elsewhere_is_refused(tmp_path: Path, project_id: str) -> None:
    with pytest.raises(ValueError, match="no project's id"):
        ProjectCaches(tmp_path).remove(project_id)
