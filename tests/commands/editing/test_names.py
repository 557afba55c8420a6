"""Resources are found by what people call them; what is missing or not unique is refused."""

from typing import Any

import pytest

from commands.editing import names
from commands.errors import RefusedError
from tests.commands.fake_api import FakeApi, page

MODELS = page({"id": "mdl_1", "name": "m"}, {"id": "mdl_2", "name": "twin"}, {"id": "mdl_3", "name": "twin"})
DEPLOYMENTS = page({"id": "dep_1", "name": "production"}, {"id": "dep_2", "name": "second"})
ENVIRONMENTS = page({"name": "Staging", "deployment_id": "dep_2"})
API = {
    "GET /v1/models": MODELS,
    "GET /v1/models/mdl_1/deployments": DEPLOYMENTS,
    "GET /v1/models/mdl_1/environments": ENVIRONMENTS,
}


async def test_model_is_found_by_name_or_id() -> None:
    for name, id in (("m", "mdl_1"), ("mdl_2", "mdl_2")):
        assert (await names.model(FakeApi(API), name))["id"] == id
    with pytest.raises(RefusedError, match="several models are called 'twin'; give an id: mdl_2, mdl_3"):
        await names.model(FakeApi(API), "twin")
    with pytest.raises(RefusedError, match="there is no model 'none'"):
        await names.model(FakeApi(API), "none")


@pytest.mark.parametrize(("name", "id"), [("dep_2", "dep_2"), ("production", "dep_1"), ("staging", "dep_2")])
async def test_deployment_is_found_by_id_name_or_environment(name: str, id: str) -> None:
    assert (await names.deployment(FakeApi(API), "mdl_1", name))["id"] == id


async def test_group_whose_external_id_looks_like_an_id_is_found() -> None:
    def listed(body: Any, query: Any) -> Any:
        assert query["external_entity_id"] == "grp_mine"
        return page({"id": "grp_1"})

    assert await names.group_id(FakeApi({"GET /v1/gateway/groups": listed}), "grp_mine") == "grp_1"
