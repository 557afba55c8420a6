"""Names of resources in the audit trail: their paths below the management API."""

from control.records.models import DeploymentRecord, EnvironmentRecord, ModelRecord
from control.records.policy import EndpointRecord, GroupRecord, KeyRecord, SecretRecord, WorkspaceRecord
from control.records.spend import CreditRecord
from control.records.training import JobRecord, ProjectRecord
from control.records.webhooks import DeliveryRecord, WebhookRecord
from policy.prices import Price, date_text

Resource = (
    CreditRecord
    | DeliveryRecord
    | DeploymentRecord
    | EndpointRecord
    | EnvironmentRecord
    | GroupRecord
    | JobRecord
    | KeyRecord
    | ModelRecord
    | Price
    | ProjectRecord
    | SecretRecord
    | WebhookRecord
    | WorkspaceRecord
)


def path_of(record: Resource) -> str:
    """Return the path of a resource, such as `endpoints/ep_…`."""
    match record:
        case EndpointRecord():
            return f"endpoints/{record.id}"
        case SecretRecord():
            return f"secrets/{record.id}"
        case WorkspaceRecord():
            return f"workspaces/{record.id}"
        case WebhookRecord():
            return f"webhooks/{record.id}"
        case DeliveryRecord():
            return f"webhooks/{record.webhook_id}/deliveries/{record.id}"
        case GroupRecord():
            return f"groups/{record.group.id}"
        case CreditRecord():
            return f"groups/{record.group_id}/balance/credits/{record.key}"
        case ModelRecord():
            return f"models/{record.id}"
        case DeploymentRecord():
            return f"models/{record.model_id}/deployments/{record.id}"
        case EnvironmentRecord():
            return f"models/{record.model_id}/environments/{record.name}"
        case ProjectRecord():
            return f"training_projects/{record.id}"
        case JobRecord():
            return f"training_projects/{record.project_id}/jobs/{record.id}"
        case Price():
            return f"prices/{record.slug}/{date_text(record.valid_from_ms)}"
        case KeyRecord(group_id=None):
            return f"api_keys/{record.prefix}"
        case KeyRecord():
            return f"groups/{record.group_id}/api_keys/{record.prefix}"
