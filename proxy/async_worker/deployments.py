"""Tells deleted deployments from ones that this machine does not know yet."""

from policy.deployments import Where
from proxy.async_requests.requests import DeploymentRef
from proxy.parts import Directory


class Deployments:
    """The deployments of the policy."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def is_deleted(self, deployment: DeploymentRef) -> bool:
        """Return whether control's policy lacks the deployment now. Raises `PolicyUnavailableError`."""
        await self._directory.confirm_unknown()
        model = self._directory.model(deployment.model_id)
        if model is None or model.workspace_id != deployment.workspace_id:
            return True
        return model.deployment_at(Where(None, deployment.deployment_id)) is None
