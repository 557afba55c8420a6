"""`tollgate snapshot show` beside a running product. The demo: test_installed.py."""

from tests.journeys.conftest import Stage
from tests.journeys.product import models


async def test_snapshot_show_prints_the_target_and_limits_of_a_slug(stage: Stage) -> None:
    product = stage.product
    minute = ("REQUEST", "MINUTE", 7)
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, stage.upstream.url))
    root = await stage.operator.group(stage.name, models(stage.slug, minute), limit_enforcement="CASCADING")
    key = await stage.operator.key(
        await stage.operator.group(f"{stage.name}-0", [{"slug": stage.slug}], parent_group_id=root)
    )
    await stage.ask(key)  # the replica is now up to date
    prefix, _, secret = key.partition(".")
    output = product.run("snapshot", "show", "--slug", stage.slug, "--key-prefix", prefix, "--data", str(product.data))
    assert output.returncode == 0, output.stderr
    assert f"at most 7 REQUEST per MINUTE, set by {root}" in output.stdout
    assert "target PLATFORM" in output.stdout
    assert stage.upstream.url in output.stdout
    assert secret not in output.stdout + output.stderr
    unknown = product.run("snapshot", "show", "--slug", "acme/none", "--data", str(product.data))
    assert "acme/none: no such endpoint; every call is answered 404" in unknown.stdout


async def test_snapshot_show_without_a_replica_is_an_error(stage: Stage) -> None:
    output = stage.product.run("snapshot", "show", "--data", "/nonexistent")
    assert output.returncode == 1
    assert output.stderr.startswith("Error: ")
    assert "Traceback" not in output.stderr
