"""`managed_by` of endpoints, groups, webhooks and secrets over HTTP (docs/reference/management-api.md#ownership)."""

from dataclasses import dataclass
from typing import Any

import pytest

from control.resources.sealing.resealing import reencrypt_all
from tests.control.plane import SECRET_KEYS, SLUG, ControlPlane, Json

FILE = "production"


@dataclass(frozen=True)
class Kind:
    """A kind of resource that a policy file may own: how it is created, and one way to change it."""

    path: str
    create: Json
    change: Json
    is_put: bool = False

    async def made(self, plane: ControlPlane, **more: Any) -> Json:
        resource: Json = (await plane.post(self.path, await self.complete(plane, self.create) | more)).ok()
        return resource

    async def changed(self, plane: ControlPlane, id: str, body: Json | None = None, **more: Any) -> Json:
        """Change the resource by `body` alone; without one, by `self.change`."""
        request = await self.complete(plane, self.change if body is None else body) | more
        answer = await (plane.post(self.path, request) if self.is_put else plane.patch(f"{self.path}/{id}", request))
        resource: Json = answer.ok()
        return resource

    async def listed(self, plane: ControlPlane) -> Json:
        items = (await plane.get(self.path)).ok()["items"]
        resource: Json = items[-1]
        return resource

    @staticmethod
    async def complete(plane: ControlPlane, body: Json) -> Json:
        if "targets" not in body:
            return body
        secret_id = await plane.secret()
        return body | {"targets": [target | {"secret_id": secret_id} for target in body["targets"]]}


def _target(model: str) -> list[Json]:
    return [{"provider": "VENDOR_B", "target_model": model}]


_URL = "https://billing.example.com/hook"
KINDS = {
    "endpoint": Kind("/v1/gateway/endpoints", {"slug": SLUG, "targets": _target("a")}, {"targets": _target("b")}),
    "group": Kind(
        "/v1/gateway/groups",
        {"metadata": {"external_entity_id": "c1"}, "models": [{"slug": SLUG}]},
        {"models": []},
    ),
    "secret": Kind("/v1/secrets", {"name": "own", "value": "a"}, {"name": "own", "value": "b"}, is_put=True),
    "webhook": Kind("/v1/gateway/webhooks", {"url": _URL}, {"enabled": False}),
}


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


async def test_a_resource_without_owner_has_no_such_member(sqlite_plane: ControlPlane, kind: Kind) -> None:
    resource = await kind.made(sqlite_plane)
    for state in (resource, await kind.listed(sqlite_plane), await kind.changed(sqlite_plane, resource["id"])):
        assert "managed_by" not in state


async def test_a_write_that_names_the_owner_is_no_drift(plane: ControlPlane, kind: Kind) -> None:
    resource = await kind.made(plane, managed_by=FILE)
    assert resource["managed_by"] == {"name": FILE, "applied_at": resource["created_at"], "drifted": False}
    changed = await kind.changed(plane, resource["id"], managed_by=FILE)
    assert changed["updated_at"] > resource["updated_at"]
    assert changed["managed_by"] == {"name": FILE, "applied_at": changed["updated_at"], "drifted": False}
    assert (await kind.listed(plane))["managed_by"] == changed["managed_by"]


async def test_a_write_by_something_else_is_drift(plane: ControlPlane, kind: Kind) -> None:
    resource = await kind.made(plane, managed_by=FILE)
    drifted = await kind.changed(plane, resource["id"])
    assert drifted["managed_by"] == {"name": FILE, "applied_at": resource["created_at"], "drifted": True}
    mended = await kind.changed(plane, resource["id"], managed_by=FILE)
    assert mended["managed_by"] == {"name": FILE, "applied_at": mended["updated_at"], "drifted": False}


async def test_null_releases_and_another_name_takes_over(sqlite_plane: ControlPlane, kind: Kind) -> None:
    resource = await kind.made(sqlite_plane, managed_by=FILE)
    assert (await kind.changed(sqlite_plane, resource["id"], managed_by="other"))["managed_by"]["name"] == "other"
    assert "managed_by" not in await kind.changed(sqlite_plane, resource["id"], managed_by=None)
    assert "managed_by" not in await kind.listed(sqlite_plane)


@pytest.mark.parametrize("name", ["group", "webhook"])
async def test_the_owner_alone_is_a_change(sqlite_plane: ControlPlane, name: str) -> None:
    kind = KINDS[name]
    resource = await kind.made(sqlite_plane)
    before = await kind.listed(sqlite_plane)
    adopted = await kind.changed(sqlite_plane, resource["id"], {"managed_by": FILE})
    assert adopted["managed_by"]["drifted"] is False
    released = await kind.changed(sqlite_plane, resource["id"], {"managed_by": None})
    assert released == before | {"updated_at": released["updated_at"]}
    (await sqlite_plane.patch(f"{kind.path}/{resource['id']}", {})).refused(400)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\x7f", "a\u202eb", "a\u200bb", 5, ["a"]])
async def test_an_owner_that_cannot_be_printed_is_refused(sqlite_plane: ControlPlane, kind: Kind, name: Any) -> None:
    request = await kind.complete(sqlite_plane, kind.create) | {"managed_by": name}
    refused = (await sqlite_plane.post(kind.path, request)).refused(400)
    assert refused["details"][0]["field"] == "managed_by"


async def test_reencryption_is_no_drift(sqlite_plane: ControlPlane) -> None:
    for name in ("secret", "webhook"):
        await KINDS[name].made(sqlite_plane, managed_by=FILE)
    await reencrypt_all(sqlite_plane.store, (b"n" * 32, *SECRET_KEYS))
    for name in ("secret", "webhook"):
        assert (await KINDS[name].listed(sqlite_plane))["managed_by"]["drifted"] is False
