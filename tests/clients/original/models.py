"""Platform models, their deployments and environments, by the original's SDK."""

from functools import partial
from typing import Any

import baseten.client.managementapi as api

from tests.clients.original.place import Model, Place
from tests.clients.original.recording import Recorder

PROMOTIONS = ("pause", "resume", "cancel", "force_cancel", "force_roll_forward")


def run(sdk: Recorder, place: Place) -> None:
    """Make, list, change, promote, start, stop and delete."""
    model = place.model(f"model-{sdk.kind}")
    sdk.call("get_instance_types", lambda answer: isinstance(answer.instance_types, list))
    run_models(sdk, model)
    run_deployments(sdk, model)
    run_environments(sdk, model)
    run_settings(sdk, model)
    run_promotions(sdk, model)
    run_named_deployments(sdk, model)
    run_verbs(sdk, model)
    run_logs(sdk, model)
    run_deletions(sdk, place, model)


def run_models(sdk: Recorder, model: Model) -> None:
    archive = {"kind": "model_archive", "name": "x", "deployment": {}}
    sdk.call("post_models", lambda new: new.id, request=api.CreateModelRequest(source=archive))
    sdk.call("get_models", lambda answer: model.id in [one.id for one in answer.models])
    sdk.call(
        "get_models, by name",
        lambda answer: [one.id for one in answer.models] == [model.id],
        params=api.GetModelsParams(name=f"model-{sdk.kind}"),
    )
    sdk.call(
        "get_models_model_id",
        lambda one: (one.id, one.name, one.deployments_count) == (model.id, f"model-{sdk.kind}", 1),
        model_id=model.id,
    )
    name = f"renamed-{sdk.kind}"
    sdk.call(
        "patch_models",
        lambda one: one.name == name and model.place.control("GET", model.path)["name"] == name,
        model_id=model.id,
        request=api.UpdateModelRequest(name=name),
    )


def run_deployments(sdk: Recorder, model: Model) -> None:
    archive = {"kind": "model_archive", "deployment": {}}
    sdk.call(
        "post_models_deployments",
        lambda new: new.id,
        model_id=model.id,
        request=api.CreateModelDeploymentRequest(source=archive),
    )
    sdk.call(
        "get_models_deployments",
        lambda answer: [one.id for one in answer.deployments] == [model.deployment],
        model_id=model.id,
    )
    sdk.call(
        "get_models_deployments, by name",
        lambda answer: [one.id for one in answer.deployments] == [model.deployment],
        model_id=model.id,
        params=api.GetModelsDeploymentsParams(name="first"),
    )
    sdk.call(
        "get_models_deployments, by another name",
        lambda answer: answer.deployments == [],
        model_id=model.id,
        params=api.GetModelsDeploymentsParams(name="second"),
    )
    where = {"model_id": model.id, "deployment_id": model.deployment}
    sdk.call("get_models_deployments_deployment_id", lambda one: one.model_id == model.id, **where)
    sdk.call(
        "patch_models_deployments",
        lambda one: one.name == "one",
        **where,
        request=api.UpdateDeploymentRequest(name="one"),
    )


def run_environments(sdk: Recorder, model: Model) -> None:
    sdk.call(
        "post_models_environments",
        lambda new: new.name == model.environment("staging")["name"] == "staging" and not new.current_deployment,
        model_id=model.id,
        request=api.CreateEnvironmentRequest(name="staging"),
    )
    nulls = api.CreateEnvironmentRequest(
        name="qa",
        autoscaling_settings=None,
        promotion_settings=api.UpdateModelPromotionSettings(),
        request_backpressure_settings=api.UpdateRequestBackpressureSettings(policy=None),
    )
    sdk.call("post_models_environments, nulls", lambda new: new.name == "qa", model_id=model.id, request=nulls)
    sdk.call(
        "get_models_environments",
        lambda answer: {"staging", "qa"} <= {one.name for one in answer.environments},
        model_id=model.id,
    )


def run_settings(sdk: Recorder, model: Model) -> None:
    """Autoscaling and backpressure: unchanged, and as nobody can have them who starts no replicas."""
    same = api.UpdateAutoscalingSettings()
    more = api.UpdateAutoscalingSettings(min_replica=3)
    where = {"model_id": model.id, "env_name": "staging"}
    for case, settings in (("", same), (", min_replica", more)):
        sdk.call(
            f"patch_models_environments{case}",
            lambda answer: answer.environment.name == "staging",
            **where,
            request=api.UpdateEnvironmentRequest(autoscaling_settings=settings),
        )
    deployment = {"model_id": model.id, "deployment_id": model.deployment}
    for case, settings in (("", same), (", min_replica", more)):
        sdk.call(
            f"patch_models_deployments_autoscaling_settings{case}",
            lambda answer: answer.status in ("ACCEPTED", "UNCHANGED"),
            **deployment,
            request=settings,
        )
    sdk.call(
        "patch_models_deployments_request_backpressure_settings",
        lambda answer: hasattr(answer, "policy"),
        **deployment,
        request=api.UpdateRequestBackpressureSettings(policy=None),
    )


def run_promotions(sdk: Recorder, model: Model) -> None:
    where = {"model_id": model.id, "env_name": "staging"}

    def staged(answer: Any) -> bool:
        current = model.environment("staging")["current_deployment"]
        return bool(answer.id == model.deployment == current["id"])

    plain = api.PromoteToEnvironmentRequest(deployment_id=model.deployment)
    sdk.call("post_models_environments_promote", staged, **where, request=plain)
    full = api.PromoteToEnvironmentRequest(
        deployment_id=model.deployment,
        scale_down_previous_deployment=True,
        preserve_env_instance_type=True,
        environment_settings_update=None,
        promotion_settings_override=None,
    )
    sdk.call("post_models_environments_promote, all fields", staged, **where, request=full)
    sdk.call(
        "get_models_environments_env_name",
        lambda one: one.current_deployment.id == model.deployment,
        **where,
    )
    for verb in PROMOTIONS:
        sdk.call(f"post_models_environments_{verb}_promotion", lambda answer: answer is not None, **where)
    sdk.call(
        "post_models_deployments_promote",
        lambda one: one.is_production and model.environment("production")["current_deployment"]["id"] == one.id,
        model_id=model.id,
        deployment_id=model.deployment,
        request=api.PromoteRequest(),
    )
    model.point("development")
    sdk.call(
        "post_models_deployments_development_promote",
        lambda one: one.id == model.deployment and one.is_production,
        model_id=model.id,
        request=api.PromoteRequest(),
    )


def run_named_deployments(sdk: Recorder, model: Model) -> None:
    """The deployments in production and development, by those names."""
    for name in ("production", "development"):
        model.point(name)
        sdk.call(
            f"get_models_deployments_{name}",
            lambda one: one.id == model.deployment,
            model_id=model.id,
        )
        sdk.call(
            f"patch_models_deployments_{name}_autoscaling_settings",
            lambda answer: answer.status in ("ACCEPTED", "UNCHANGED"),
            model_id=model.id,
            request=api.UpdateAutoscalingSettings(),
        )


def run_verbs(sdk: Recorder, model: Model) -> None:
    places: dict[str, dict[str, str]] = {
        "environments": {"env_name": "staging"},
        "deployments": {"deployment_id": model.deployment},
        "deployments_production": {},
        "deployments_development": {},
    }
    for where, arguments in places.items():
        for verb in ("deactivate", "activate"):
            sdk.call(
                f"post_models_{where}_{verb}",
                partial(_follows, model, verb),
                model_id=model.id,
                **arguments,
            )
        if where != "environments":
            sdk.call(
                f"post_models_{where}_retry",
                lambda answer: answer.deployment.id == model.deployment and (answer.retried or answer.reason),
                model_id=model.id,
                **arguments,
            )


def _follows(model: Model, verb: str, answer: Any) -> bool:
    """Return whether the deployment is as the verb says."""
    assert answer.success
    status = model.place.control("GET", f"{model.path}/deployments/{model.deployment}")["status"]
    return bool((status in ("INACTIVE", "DEACTIVATING")) == (verb == "deactivate"))


def run_logs(sdk: Recorder, model: Model) -> None:
    """A line that the owner of the replica reports, read in each way; then the replica itself."""
    where = {"model_id": model.id, "deployment_id": model.deployment}
    path = f"{model.path}/deployments/{model.deployment}"
    model.serve()
    model.place.control("POST", f"{path}/logs/append", {"logs": [{"message": "loaded"}]})

    def has_line(answer: Any) -> bool:
        return "loaded" in [line.message for line in answer.logs]

    sdk.call("post_models_deployments_logs", has_line, **where, request=api.GetDeploymentLogsRequest())
    sdk.call("get_models_deployments_logs", has_line, **where)
    sdk.call("get_models_environments_logs", has_line, model_id=model.id, env_name="staging")
    sdk.call("get_models_deployments_config", lambda answer: answer.config is not None, **where)
    replica = model.place.replica
    sdk.call(
        "delete_models_deployments_replicas",
        lambda answer: answer.success and replica not in str(model.place.control("GET", path)),
        **where,
        replica_id=replica,
    )


def run_deletions(sdk: Recorder, place: Place, model: Model) -> None:
    sdk.call(
        "delete_models_environments",
        lambda one: one.deleted and place.control.status(f"{model.path}/environments/staging") == 404,
        model_id=model.id,
        env_name="staging",
    )
    for name in ("production", "development", "qa"):
        place.control("DELETE", f"{model.path}/environments/{name}")
    sdk.call(
        "delete_models_deployments",
        lambda one: one.deleted and place.control("GET", f"{model.path}/deployments")["items"] == [],
        model_id=model.id,
        deployment_id=model.deployment,
    )
    sdk.call(
        "delete_models",
        lambda one: one.deleted and place.control.status(model.path) == 404,
        model_id=model.id,
    )
