"""The rules of platform models: models, deployments, replicas, environments, statuses. No HTTP, no SQL."""
