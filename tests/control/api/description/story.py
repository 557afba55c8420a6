"""The calls that the examples of the OpenAPI document come from, in their order.

`$createGroup.id` is what the answer to an earlier call has there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

PLACES: Mapping[str, str] = {
    "team_id": "$listTeams.teams.0.id",
    "endpoint_id": "$createEndpoint.id",
    "group_id": "$createGroup.id",
    "prefix": "$createGroupKey.prefix",
    "webhook_id": "$createWebhook.id",
    "delivery_id": "$testWebhook.id",
    "name": "vendor-b",
    "model_id": "$createModel.id",
    "deployment_id": "$createDeployment.id",
    "environment_name": "production",
    "training_project_id": "$createTrainingProject.training_project.id",
    "training_job_id": "$createTrainingJob.training_job.id",
    "session_id": "$beginInteractiveSessions.auth_codes.0.session_id",
    "checkpoint_id": "$listCheckpoints.checkpoints.0.checkpoint_id",
    "blob_type": "train",
}
"""The value of each path parameter, where a call says nothing else."""


@dataclass(frozen=True)
class Call:
    """One call: the operation's id, its body, and the path and query parameters that differ from the usual ones.

    `is_shown` is false of a call that only prepares others.
    """

    id: str
    body: Json | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    path: Mapping[str, str] = field(default_factory=dict)
    is_shown: bool = True


_TARGET = {"provider": "VENDOR_B", "secret_id": "$setSecret.id", "target_model": "big-1"}
_RATE = {"type": "REQUEST", "unit": "MINUTE", "threshold": 60}
_JOB = {
    "training_job": {
        "image": {"base_image": "registry.example/trainer:1"},
        "compute": {"node_count": 1, "cpu_count": 4, "memory": "8Gi"},
        "runtime": {
            "start_commands": ["python train.py"],
            "artifacts": [{"s3_bucket": "$getUploadCredentials.s3_bucket", "s3_key": "$getUploadCredentials.s3_key"}],
            "cache_config": {"enabled": True},
        },
    }
}
_OWN_KEY = {"prefix": "$createApiKey.prefix"}
_NEW_JOB = {"training_job_id": "$recreateTrainingJob.training_job.id"}
_DEVELOPMENT = {"environment_name": "development"}
_PROVIDER = {"issuer": "https://login.example.invalid", "audience": "tollgate", "entity_claim": "organization"}

SETTING_UP = (
    Call("listTeams"),
    Call("getTeam"),
    Call("getCurrentUser"),
    Call("queryTeams", {"query": "{ teams { id name default } }"}),
    Call("createApiKey", {"type": "WORKSPACE_MANAGE_ALL", "role": "viewer", "name": "dashboards"}),
    Call("listApiKeys"),
    Call("getApiKey", path=_OWN_KEY),
    Call("setSecret", {"name": "vendor-b", "value": "sk-the-credential-of-the-upstream"}),
    Call("setTeamSecret", {"name": "vendor-a", "value": "sk-another-credential"}),
    Call("listSecrets"),
    Call("listTeamSecrets"),
    Call("compareSecret", {"name": "vendor-b", "value": "sk-the-credential-of-the-upstream"}),
    Call("createEndpoint", {"slug": "acme/chat", "targets": [_TARGET]}),
    Call("listEndpoints"),
    Call("getEndpoint"),
    Call("updateEndpoint", {"targets": [_TARGET | {"target_model": "big-2"}]}),
    Call(
        "setPrice",
        {
            "slug": "acme/chat",
            "valid_from": "2026-01-01",
            "currency": "EUR",
            "input_per_million": "3.00",
            "output_per_million": "15.00",
        },
    ),
    Call("listPrices", query={"slug": "acme/chat"}),
    Call(
        "createGroup",
        {
            "metadata": {"external_entity_id": "customer-42", "name": "Example Ltd"},
            "models": [{"slug": "acme/chat", "rate_limits": [_RATE]}],
            "alert_percents": [80, 100],
        },
    ),
    Call("listGroups", query={"external_entity_id": "customer-42"}),
    Call("getGroup"),
    Call("updateGroup", {"spend_limits": [{"unit": "MONTH", "amount": "250.00", "currency": "EUR"}]}),
    Call("createGroupKey", {"name": "production"}),
    Call("registerGroupKey", {"key": "a-key-that-was-made-elsewhere-0001", "name": "from before"}),
    Call("listGroupKeys"),
    Call("getGroupKey"),
    Call("updateGroupKey", {"allowed_ips": ["192.0.2.0/24"]}),
    Call("rotateGroupKey", {"overlap_seconds": 3600}),
    Call("getGroupKeySpend"),
    Call("listAllKeys"),
    Call("createWebhook", {"url": "https://hooks.example.com/tollgate", "event_types": ["API_BILLING_USAGE"]}),
    Call("listWebhooks"),
    Call("getWebhook"),
    Call("updateWebhook", {"event_types": ["API_BILLING_USAGE", "LIMIT_ALERT"]}),
    Call("testWebhook"),
    Call("redeliver"),
    Call("listDeliveries"),
    Call("setIdentityProvider", _PROVIDER),
    Call("getIdentityProvider"),
    Call("deleteIdentityProvider"),
    Call("getSigningSecret"),
    Call("rotateSigningSecret"),
)
CALLS_CAME = (
    Call("getGroupUsage"),
    Call("getGroupLimits"),
    Call("getGroupSpend"),
    Call("createBalanceCredit", {"amount": "100.00", "currency": "EUR", "reference": "invoice-2026-001"}),
    Call("getGroupBalance"),
    Call("listBalanceEntries"),
    Call("listBillingEvents", query={"start_time": "$now.start", "end_time": "$now.end", "include": "details"}),
    Call("getUsageReport", query={"start": "$now.start", "end": "$now.end", "group_by": "entity"}),
    Call("createUsageLink", {"expires_in_s": 3600, "frame_origins": ["https://portal.example"]}),
    Call("getTraffic", query={"series": "false"}),
    Call("listRequests"),
    Call("getHealth"),
    Call("search", query={"q": "customer"}),
    Call("listAuditEvents", query={"limit": "2"}),
)
MODELS = (
    Call("createModel", {"name": "llama"}),
    Call("listModels"),
    Call("getModel"),
    Call("updateModel", {"name": "llama-3"}),
    Call("listInstanceTypes"),
    Call("createDeployment", {"name": "v1", "health": {"path": "/health"}, "max_concurrency": 32}),
    Call("listDeployments"),
    Call("getDeployment"),
    Call("updateDeployment", {"max_queued": 200}),
    Call("appendDeploymentLogs", {"logs": [{"message": "weights loaded", "level": "INFO"}]}),
    Call("queryDeploymentLogs", {"limit": 100, "min_level": "INFO"}),
    Call("getDeploymentLogs", query={"limit": "100"}),
    Call("createEnvironment", {"name": "development"}),
    Call("promoteToEnvironment", {"deployment_id": "$createDeployment.id"}, path=_DEVELOPMENT),
    Call("getDevelopmentDeployment"),
    Call("updateDevelopmentDeployment", {"max_concurrency": 16}),
    Call("promoteDevelopmentDeployment", {}),
    Call("promoteDeployment", {}),
    Call("setEnvironment", {"deployment_id": "$createDeployment.id"}),
    Call("listEnvironments"),
    Call("getEnvironment"),
    Call("updateEnvironment", {}),
    Call("getEnvironmentLogs"),
    Call("getProductionDeployment"),
    Call("updateProductionDeployment", {"max_concurrency": 64}),
    Call("updateDeploymentAutoscaling", {}),
    Call("updateDevelopmentAutoscaling", {}),
    Call("updateProductionAutoscaling", {}),
    Call("updateDeploymentBackpressure", {}),
    Call("reportStatus", {"status": "WAKING_UP"}),
    Call("retryDeployment"),
    Call("retryDevelopmentDeployment"),
    Call("retryProductionDeployment"),
    Call("retryEnvironment"),
    Call("deactivateDeployment"),
    Call("activateDeployment"),
    Call("deactivateDevelopmentDeployment"),
    Call("activateDevelopmentDeployment"),
    Call("deactivateProductionDeployment"),
    Call("activateProductionDeployment"),
    Call("deactivateEnvironment"),
    Call("activateEnvironment"),
    Call("setReplicas", {"replicas": ["https://93.184.215.14:8000"]}),
)
PREPARING = (
    Call("createTrainingProject", {"training_project": {"name": "fine-tuning"}}),
    Call("createTeamTrainingProject", {"training_project": {"name": "evaluation"}}),
    Call("listTrainingProjects"),
    Call("listTeamTrainingProjects"),
    Call("listTrainingInstanceTypes"),
    Call("getTrainingCapacity"),
    Call("getUploadCredentials"),
)
JOB_WAITS = (
    Call("createTrainingJob", _JOB),
    Call("getTrainingProject"),
    Call("listTrainingJobs"),
    Call("getTrainingJob"),
    Call("updateTrainingJob", {"priority": 10}),
    Call("getTrainingJobQueueContext"),
    Call("searchTrainingJobs", {"statuses": ["TRAINING_JOB_PENDING"], "order_by": [{"field": "created_at"}]}),
)
JOB_RUNS = (
    Call("beginInteractiveSessions"),
    Call("getTrainingJobAuthCodes"),
    Call("updateInteractiveSessions", {"timeout_minutes": 60}),
    Call("updateInteractiveSession", {"timeout_minutes": 30}),
    Call("getTrainingCacheSummary"),
    Call("queryTrainingJobLogs", {"limit": 100}),
    Call("getTrainingJobLogs", query={"limit": "100"}),
    Call("getTrainingJobMetrics"),
    Call("queryTrainingJobUse", {"step_seconds": 60}),
    Call("listCheckpoints"),
    Call("listCheckpointFiles"),
    Call("listAllCheckpointFiles"),
    Call("getTrainingJobDownloads"),
    Call("stopTrainingJob"),
    Call("recreateTrainingJob"),
)
CLEARING_UP = (
    Call("stopTrainingJob", path=_NEW_JOB, is_shown=False),
    Call("deleteTrainingJob", path=_NEW_JOB),
    Call("deleteTrainingProject", path={"training_project_id": "$createTeamTrainingProject.training_project.id"}),
    Call("deleteEnvironment"),
    Call("deleteEnvironment", path=_DEVELOPMENT, is_shown=False),
    Call("deleteDeployment"),
    Call("deleteModel"),
    Call("deleteWebhook"),
    Call("revokeGroupKey"),
    Call("deleteGroup", query={"forfeit": "true"}),
    Call("deletePrice", query={"slug": "acme/chat", "valid_from": "2026-01-01"}),
    Call("deleteEndpoint"),
    Call("deleteSecret"),
    Call("deleteTeamSecret", path={"name": "vendor-a"}),
    Call("revokeApiKey", path=_OWN_KEY),
)
