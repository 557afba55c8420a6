"""The deployments that this machine has calls for, has served, or probes."""

from collections import deque
from collections.abc import Iterator

from policy.deployments import Deployment
from policy.snapshot import ModelRow
from proxy.replicas.supervisor.deployment_calls import DeploymentCalls


class KnownDeployments:
    """Deployments by id and by model. Those with a health check are known from the time that policy has them."""

    def __init__(self) -> None:
        self._by_id: dict[str, DeploymentCalls] = {}
        self._by_model: dict[str, dict[str, DeploymentCalls]] = {}

    def __iter__(self) -> Iterator[DeploymentCalls]:
        return iter(self._by_id.values())

    def get(self, id: str | None) -> DeploymentCalls | None:
        return self._by_id.get(id) if id is not None else None

    def seen(self, model: ModelRow, policy: Deployment) -> DeploymentCalls:
        """The deployment, as policy has it now."""
        deployment = self._by_id.get(policy.id)
        if deployment is None:
            deployment = self._by_id[policy.id] = DeploymentCalls.first_seen(model, policy)
            self._by_model.setdefault(model.id, {})[policy.id] = deployment
        elif deployment.policy is not policy:
            deployment.update(policy)
        deployment.environments = deployment.environments if deployment.waiting_calls else model.environments
        return deployment

    def follow(self, model_id: str, model: ModelRow | None) -> list[DeploymentCalls]:
        """Bring the model's deployments in step with policy; return those to settle anew, the deleted ones included.

        A model may have thousands, so those that did not change cost next to nothing.
        """
        policies = model.deployments if model is not None else {}
        environments = model.environments if model is not None else {}
        deployments = self._by_model.get(model_id, {})
        touched = {}
        for id, policy in policies.items():
            deployment = deployments.get(id)
            if model is not None and (policy is not deployment.policy if deployment else policy.health is not None):
                touched[id] = self.seen(model, policy)
        for id, deployment in self._by_model.get(model_id, {}).items():
            deployment.deleted = id not in policies
            if deployment.deleted or (deployment.waiting_calls and deployment.environments is not environments):
                deployment.environments = environments
                deployment.to_follow = deque(deployment.waiting_calls)
                touched[id] = deployment
        return list(touched.values())

    def forget(self, deployment: DeploymentCalls) -> None:
        del self._by_id[deployment.policy.id]
        of_model = self._by_model[deployment.model_id]
        del of_model[deployment.policy.id]
        if not of_model:
            del self._by_model[deployment.model_id]
