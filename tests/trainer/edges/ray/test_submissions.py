"""Reads what Ray lists as attempts and as hosts."""

from dataclasses import replace

import pytest

from policy.training.reports import JobReport
from policy.training.resources import Host, NodeResources
from policy.training.statuses import Outcome, Phase
from trainer.edges.ray.cluster import RayJob
from trainer.edges.ray.machines import Machine, bundle
from trainer.edges.ray.submissions import final_report, latest, metadata, own, present_report, submission_id

URL = "http://control:8081"


def listed(attempt: int = 1, status: str = "FAILED", message: str = "", url: str = URL) -> RayJob:
    return RayJob(submission_id("job", attempt), status, message, metadata(url, "job", attempt, ["host-0"]))


def test_attempts_of_other_tollgates_and_other_programs_are_left_alone() -> None:
    jobs = [listed(), listed(url="http://other"), RayJob("raysubmit_1", "RUNNING", "", {})]

    assert [one.ray for one in own(jobs, URL)] == [jobs[0]]


def test_latest_attempt_counts_as_a_number() -> None:
    assert latest(own([listed(9), listed(10), listed(2)], URL))["job"].attempt == 10


@pytest.mark.parametrize(
    ("status", "phase", "stop", "outcome"),
    [
        ("FAILED", Phase.STARTING, None, Outcome.DEPLOY_FAILED),
        ("FAILED", Phase.RUNNING, None, Outcome.FAILED),
        ("SUCCEEDED", Phase.RUNNING, None, Outcome.FAILED),
        ("STOPPED", Phase.RUNNING, None, Outcome.STOPPED),
        ("STOPPED", Phase.RUNNING, Outcome.REQUEUED, Outcome.REQUEUED),
        ("FAILED", Phase.RUNNING, Outcome.STOPPED, Outcome.STOPPED),
    ],
)
def test_driver_that_ended_without_a_word(status: str, phase: Phase, stop: Outcome | None, outcome: Outcome) -> None:
    [submitted] = own([listed(status=status)], URL)

    report = final_report(submitted, JobReport("job", 1, phase), stop)

    assert (report.phase, report.outcome) == (Phase.ENDED, outcome)


def test_reason_of_a_driver_that_did_not_start_names_cause_and_remedy() -> None:
    message = (
        "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\n"
        "Running entrypoint for job job-1: exec python -m trainer.edges.ray.driver\n"
        "/usr/bin/python: No module named trainer\n"
    )
    [submitted] = own([listed(message=message)], URL)

    assert final_report(submitted, None, None).error_message == (
        "the job's driver did not start on the Ray cluster (Job entrypoint command failed with exit code 1: "
        "/usr/bin/python: No module named trainer); each Ray machine needs Tollgate with its extra `ray`, in the "
        "trainer's version"
    )


def test_stopped_attempt_ends_with_what_the_stop_was_for() -> None:
    [submitted] = own([listed(status="RUNNING")], URL)
    report = JobReport("job", 1, Phase.ENDED, Outcome.STOPPED)

    assert present_report(submitted, report, Outcome.REQUEUED).outcome is Outcome.REQUEUED
    assert present_report(submitted, report, None).outcome is Outcome.STOPPED
    completed = replace(report, outcome=Outcome.COMPLETED)
    assert present_report(submitted, completed, Outcome.REQUEUED) == completed


def test_machine_is_a_host_with_its_accelerators() -> None:
    resources = {"CPU": 8.0, "memory": 2.0**34, "GPU": 2.0, "accelerator_type:A100": 1.0, "node:10.0.0.7": 1.0}

    host = Machine("ab12cd34ef", "10.0.0.7", resources).host()

    assert host == Host("10.0.0.7-ab12cd34", 8000, 16384, 8, {"A100": 2})


def test_bundle_has_what_the_instance_type_has() -> None:
    assert bundle(NodeResources(1500, 1024)) == {"CPU": 1.5, "memory": 2.0**30}
    assert bundle(NodeResources(1000, 1024, 2, "A100")) == {
        "CPU": 1.0,
        "memory": 2.0**30,
        "GPU": 2.0,
        "accelerator_type:A100": 0.001,
    }
