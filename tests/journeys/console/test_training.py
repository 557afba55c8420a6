"""The pages of training: a job's curves, log and files, and what an operator does with it."""

from pathlib import Path

from playwright.async_api import Page, expect

from tests.journeys.console.browsing import assert_accessible, assert_fits, signed_in
from tests.journeys.console.scene import Scene


async def test_a_job_shows_its_loss_its_log_and_the_files_of_its_checkpoints(page: Page, scene: Scene) -> None:
    assert scene.job is not None
    job = await scene.job.read()
    project = job["training_project_id"]
    await signed_in(page, scene.api_key, f"/console/training?project={project}&job={job['id']}")
    await expect(page.get_by_role("figure")).to_contain_text("loss, last 0.18")
    await page.get_by_role("figure").get_by_text("Table").click()
    await expect(page.get_by_role("region", name="Table of loss").locator("tbody tr")).to_have_count(8)
    await expect(page.get_by_role("region", name="Log lines")).to_contain_text("reads 4096 examples")
    await assert_accessible(page)
    await assert_fits(page)
    await page.get_by_role("button", name="Files of").click()
    async with page.expect_download() as download:
        await page.get_by_role("link", name="weights").click()
    assert Path(await (await download.value).path()).read_text() == "weights\n"


async def test_a_job_is_recreated_entered_stopped_and_deleted(page: Page, scene: Scene) -> None:
    assert scene.job is not None
    operator = scene.stage.operator
    dialog = page.get_by_role("dialog")
    answer = await operator.call("POST", "/v1/training_jobs/search", {"statuses": ["TRAINING_JOB_RUNNING"]})
    running = answer["training_jobs"][0]
    await signed_in(page, scene.api_key, "/console/training?status=RUNNING")
    await page.get_by_role("link", name=running["id"]).first.click()
    await page.get_by_role("button", name="Recreate").click()
    await page.wait_for_url(lambda url: "job=tj_" in url and running["id"] not in url)
    await page.get_by_role("button", name="Begin a session").click()
    await dialog.get_by_role("button", name="Refresh").click()
    await expect(dialog.get_by_label("Code of g00r0")).to_be_visible()
    await page.get_by_role("button", name="Close").click()
    await page.get_by_role("button", name="Stop").click()
    await dialog.get_by_role("button", name="Stop").click()
    await expect(page.get_by_role("heading", name="STOPPED")).to_be_visible()
    id = page.url.partition("job=")[2]
    await page.get_by_role("button", name="Delete").click()
    await dialog.get_by_label("to go on").fill(id)
    await dialog.get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    assert (await operator.call("POST", "/v1/training_jobs/search", {"job_id": id}))["training_jobs"] == []
