"""The page of secrets: names and what uses them; a value goes in once and never comes back."""

import json

from playwright.async_api import Page, Response, expect

from tests.journeys.console.browsing import assert_accessible, assert_fits, signed_in
from tests.journeys.console.scene import Scene

VALUE = "sk-first-of-the-journey"
NEXT_VALUE = "sk-second-of-the-journey"


async def is_value(scene: Scene, name: str, value: str) -> bool:
    answer = await scene.stage.operator.call("POST", "/v1/secrets/compare", {"name": name, "value": value})
    return answer["equal"] is True


async def test_a_secret_is_stored_replaced_and_deleted(page: Page, scene: Scene) -> None:
    answers: list[Response] = []

    def note(answer: Response) -> None:
        answers.append(answer)

    page.on("response", note)
    await signed_in(page, scene.api_key, "/console/secrets")
    await page.get_by_label("Name", exact=True).fill("<b>bold</b>")
    await page.get_by_label("Value", exact=True).fill(VALUE)
    await page.get_by_role("button", name="Store").click()
    name = page.get_by_label("Name", exact=True)
    await expect(name).to_have_attribute("aria-invalid", "true")
    await expect(page.locator(".field").filter(has=name).locator(".fault")).not_to_be_empty()
    await assert_accessible(page)
    await name.fill("journey")
    await page.get_by_role("button", name="Store").click()
    row = (
        page.get_by_role("table", name="Secrets").get_by_role("row").filter(has=page.get_by_text("journey", exact=True))
    )
    await expect(row).to_contain_text("no endpoint")
    await expect(row).to_contain_text("never")
    await expect(page.get_by_label("Value", exact=True)).to_have_value("")
    assert await is_value(scene, "journey", VALUE)
    await assert_accessible(page)
    await assert_fits(page)

    await name.fill("journey")
    await page.get_by_label("Value", exact=True).fill(NEXT_VALUE)
    await page.get_by_role("button", name="Store").click()
    await expect(page.get_by_role("alert").first).to_contain_text("There is a secret of this name")
    assert await is_value(scene, "journey", VALUE), "a form for a new one replaces none"
    await page.get_by_label("Value", exact=True).fill("")

    await row.get_by_role("button", name="Replace").click()
    dialog = page.get_by_role("dialog", name="Replace the value")
    assert await dialog.get_by_label("Value", exact=True).get_attribute("type") == "password"
    await dialog.get_by_label("Value", exact=True).fill(NEXT_VALUE)
    await assert_accessible(page)
    await dialog.get_by_role("button", name="Replace").click()
    await expect(dialog).to_have_count(0)
    await expect(row).not_to_contain_text("never")
    assert await is_value(scene, "journey", NEXT_VALUE)

    await row.get_by_role("button", name="Delete").click()
    confirmation = page.get_by_role("dialog", name="Delete this secret?")
    await confirmation.get_by_role("button", name="Delete").click()
    await expect(row).to_have_count(0)
    content = await page.content()
    bodies = [await one.text() for one in answers if "/v1/" in one.url]
    for value in (VALUE, NEXT_VALUE):
        assert value not in content
        assert all(value not in body for body in bodies)


async def test_a_value_of_several_lines_comes_from_a_file(page: Page, scene: Scene) -> None:
    value = "first line\nsecond line\n"
    await signed_in(page, scene.api_key, "/console/secrets")
    await page.get_by_label("Name", exact=True).fill("of-a-file")
    file = {"name": "key.pem", "mimeType": "text/plain", "buffer": value.encode()}
    await page.get_by_label("Or a file with the value").set_input_files(file)  # type: ignore[arg-type]
    await page.get_by_role("button", name="Store").click()
    await expect(page.get_by_role("table", name="Secrets")).to_contain_text("of-a-file")
    assert await is_value(scene, "of-a-file", value)


async def test_a_secret_in_use_names_its_endpoints_and_stays(page: Page, scene: Scene) -> None:
    operator = scene.stage.operator
    secret = await operator.call("POST", "/v1/secrets", {"name": "in-use", "value": VALUE})
    target = {"provider": "VENDOR_B", "target_model": "m", "secret_id": secret["id"]}
    endpoint = await operator.call("POST", "/v1/gateway/endpoints", {"slug": "acme/uses-it", "targets": [target]})
    await signed_in(page, scene.api_key, "/console/secrets?name=in-use")
    row = page.get_by_role("table", name="Secrets").get_by_role("row").filter(has=page.get_by_text("in-use"))
    await expect(row.get_by_role("link", name="acme/uses-it")).to_have_attribute(
        "href", f"/console/endpoints?id={endpoint['id']}"
    )
    await row.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog", name="This secret is in use")
    await expect(dialog).to_contain_text("acme/uses-it")
    await assert_accessible(page)
    await dialog.get_by_role("button", name="Close", exact=True).last.click()
    await row.get_by_role("button", name="Replace").click()
    await page.get_by_role("dialog").get_by_label("Value", exact=True).fill("x" * 9000)
    await page.get_by_role("dialog").get_by_role("button", name="Replace").click()
    value = page.get_by_role("dialog").get_by_label("Value", exact=True)
    await expect(value).to_have_attribute("aria-invalid", "true")
    await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    await operator.call("DELETE", f"/v1/gateway/endpoints/{endpoint['id']}")
    assert await is_value(scene, "in-use", VALUE)


async def test_secrets_of_another_workspace_and_other_keys_see_nothing(page: Page, scene: Scene) -> None:
    created = scene.stage.product.command("workspace", "create", "secretless", "--prefix", "secretless")
    await signed_in(page, created["api_key"], "/console/secrets")
    await expect(page.get_by_text("No secret yet")).to_be_visible()
    await page.context.clear_cookies()
    await signed_in(page, scene.workspace_keys["WORKSPACE_INVOKE"], "/console/secrets")
    await expect(page.get_by_text("Secrets needs a key with management scope")).to_be_visible()
    assert "vendor" not in json.dumps(await page.evaluate("() => document.body.innerText"))
