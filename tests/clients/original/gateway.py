"""Secrets, keys, endpoints, groups and events, by the original's SDK."""

from datetime import UTC, datetime, timedelta

import baseten.client.managementapi as api

from tests.clients.original.place import Place, until
from tests.clients.original.recording import Recorder


def run(sdk: Recorder, place: Place) -> None:
    """Make, list, change and delete one of each."""
    teams = sdk.call("get_teams", lambda answer: [team.default for team in answer.teams] == [True])
    team = teams.teams[0]
    sdk.call("get_teams_team_id", lambda one: one.name == team.name, team_id=team.id)
    run_secrets(sdk, place)
    run_keys(sdk, place)
    run_endpoints(sdk, place)
    run_groups(sdk, place)
    run_events(sdk, place)


def run_team_secrets(sdk: Recorder, place: Place, name: str) -> None:
    """Run the same below the workspace's own team, which has the secret of this name."""
    team = {"team_id": place.control("GET", "/v1/teams")["teams"][0]["id"]}
    request = api.UpsertSecretRequest(name=f"team-{name}", value="v")
    sdk.call("post_teams_secrets", lambda secret: secret.name == f"team-{name}", **team, request=request)
    sdk.call(
        "get_teams_secrets",
        lambda answer: {name, f"team-{name}"} <= {secret.name for secret in answer.secrets},
        **team,
    )
    sdk.call(
        "delete_teams_secrets",
        lambda tombstone: tombstone.name not in place.control.items("/v1/secrets", "name"),
        **team,
        secret_name=f"team-{name}",
    )


def run_secrets(sdk: Recorder, place: Place) -> None:
    name = f"secret-{sdk.kind}"
    request = api.UpsertSecretRequest(name=name, value="v")
    sdk.call("post_secrets", lambda secret: secret.id in place.control.items("/v1/secrets", "id"), request=request)
    sdk.call("get_secrets", lambda answer: name in [secret.name for secret in answer.secrets])
    run_team_secrets(sdk, place, name)
    sdk.call(
        "delete_secrets",
        lambda tombstone: tombstone.name == name and name not in place.control.items("/v1/secrets", "name"),
        secret_name=name,
    )


def run_keys(sdk: Recorder, place: Place) -> None:
    def shown() -> list[str]:
        return place.control.items("/v1/api_keys", "prefix")

    request = api.CreateAPIKeyRequest(type="WORKSPACE_INVOKE", name=f"key-{sdk.kind}")
    key = sdk.call("post_api_keys", lambda key: key.api_key.split(".")[0] in shown(), request=request)
    bare = api.CreateAPIKeyRequest(type="WORKSPACE_INVOKE", name=None, model_ids=None, team_id=None)
    sdk.call("post_api_keys, explicit nulls", lambda key: key.api_key.split(".")[0] in shown(), request=bare)
    prefix = key.api_key.split(".")[0]
    sdk.call("get_api_keys", lambda answer: prefix in [one.prefix for one in answer.keys])
    sdk.call(
        "get_api_keys, created_by_me",
        lambda answer: prefix in [one.prefix for one in answer.keys],
        params=api.GetApiKeysParams(created_by_me=False),
    )
    sdk.call(
        "delete_api_keys",
        lambda tombstone: tombstone.prefix == prefix and prefix not in shown(),
        api_key_prefix=prefix,
    )


def run_endpoints(sdk: Recorder, place: Place) -> None:
    secret = place.control("POST", "/v1/secrets", {"name": f"vendor-{sdk.kind}", "value": "v"})["id"]
    model = place.model(f"target-{sdk.kind}")
    slug = f"acme/vendor-{sdk.kind}"
    vendor = api.EndpointTargetRequest(provider="OPENAI", secret_id=secret, target_model="g")
    endpoint = sdk.call(
        "post_gateway_endpoints",
        lambda new: new.slug == slug and new.targets[0].target_model == "g",
        request=api.CreateEndpointRequest(slug=slug, targets=[vendor]),
    )
    ours = api.EndpointTargetRequest(provider="BASETEN", model_id=model.id)
    sdk.call(
        "post_gateway_endpoints, BASETEN",
        lambda new: new.targets[0].model_id == model.id,
        request=api.CreateEndpointRequest(slug=f"acme/platform-{sdk.kind}", targets=[ours]),
    )
    sdk.call("get_gateway_endpoints", lambda answer: endpoint.id in [one.id for one in answer.items])
    sdk.call("get_gateway_endpoints_endpoint_id", lambda one: one.slug == slug, endpoint_id=endpoint.id)
    changed = api.EndpointTargetRequest(
        provider="OPENAI", secret_id=secret, target_model="h", base_url=None, vertex_config=None
    )
    sdk.call(
        "patch_gateway_endpoints",
        lambda one: one.targets[0].target_model == "h",
        endpoint_id=endpoint.id,
        request=api.UpdateEndpointRequest(targets=api.Targets([changed])),
    )
    sdk.call(
        "delete_gateway_endpoints",
        lambda _: endpoint.id not in place.control.items("/v1/gateway/endpoints", "id"),
        endpoint_id=endpoint.id,
    )


def run_groups(sdk: Recorder, place: Place) -> None:
    entity = f"groups-{sdk.kind}"
    slug = called_slug(sdk, place)
    limit = api.UsageLimit(type="REQUEST", unit="DAY", threshold=5)
    request = api.CreateGroupRequest(
        metadata=api.GroupMetadata(external_entity_id=entity, name=None),
        models=[api.ModelConfig(slug=slug, rate_limits=None, usage_limits=[limit])],
        hierarchy=api.CreateGroupHierarchy(limit_enforcement=None, parent_group_id=None),
    )
    group = sdk.call(
        "post_gateway_groups",
        lambda new: new.metadata.external_entity_id == entity and new.models[0].usage_limits[0].threshold == 5,
        request=request,
    )
    sdk.call("get_gateway_groups", lambda answer: group.id in [one.id for one in answer.items])
    sdk.call(
        "get_gateway_groups_group_id",
        lambda one: one.metadata.external_entity_id == entity,
        group_id=group.id,
    )
    sdk.call(
        "patch_gateway_groups",
        lambda one: one.metadata.model_dump()["name"] == "new" and one.models[0].slug == slug,
        group_id=group.id,
        request=api.UpdateGroupRequest(metadata=api.UpdateGroupMetadata(name="new"), models=None),
    )
    key = sdk.call(
        "post_gateway_groups_api_keys",
        lambda new: new.api_key.startswith(new.prefix),
        group_id=group.id,
        request=api.CreateApiKeyForGroupRequest(),
    )
    sdk.call(
        "get_gateway_groups_api_keys",
        lambda answer: [one.prefix for one in answer.items] == [key.prefix],
        group_id=group.id,
    )
    sdk.call(
        "get_gateway_groups_api_keys_api_key_prefix",
        lambda one: one.prefix == key.prefix,
        group_id=group.id,
        api_key_prefix=key.prefix,
    )
    own = api.RegisterAPIKeyRequest(name="own", key=f"own-key-{sdk.kind}-0123456789-0123456789-0123456789")
    sdk.call(
        "post_gateway_groups_api_keys_register",
        lambda answer: answer.ok and may_call(place, own.key, slug),
        group_id=group.id,
        request=own,
    )


def may_call(place: Place, key: str, slug: str) -> bool:
    """Return whether the slug answers a call with this key."""
    body = {"model": slug, "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"Authorization": f"Bearer {key}"}
    return place.proxy.http.post("/v1/chat/completions", json=body, headers=headers, timeout=60).status_code == 200


def called_slug(sdk: Recorder, place: Place) -> str:
    """A slug whose target is a model with the model server as its replica."""
    slug = f"acme/served-{sdk.kind}"
    model = place.model(f"served-{sdk.kind}")
    model.point("production")
    model.serve()
    targets = [{"provider": "PLATFORM", "model_id": model.id, "target_model": "m"}]
    place.control("POST", "/v1/gateway/endpoints", {"slug": slug, "targets": targets})
    return slug


def run_events(sdk: Recorder, place: Place) -> None:
    """One call by a group's key, and its event."""
    entity = f"events-{sdk.kind}"
    body = {"metadata": {"external_entity_id": entity}, "models": [{"slug": f"acme/served-{sdk.kind}"}]}
    group = place.control("POST", "/v1/gateway/groups", body)["id"]
    key = place.control("POST", f"/v1/gateway/groups/{group}/api_keys", {})["api_key"]
    began = datetime.now(UTC) - timedelta(hours=1)
    assert may_call(place, key, f"acme/served-{sdk.kind}")
    start = began.strftime("%Y-%m-%dT%H:%M:%SZ")
    path = f"/v1/gateway/events?start_time={start}&external_entity_ids={entity}"
    until(lambda: place.control("GET", path)["items"], "the call's event")
    sdk.call(
        "get_gateway_events",
        lambda answer: [event.externalEntityId for event in answer.items] == [entity],
        params=api.GetGatewayEventsParams(start_time=began, external_entity_ids=[entity]),
    )
    sdk.call("get_gateway_events, no window", lambda answer: answer.items)
