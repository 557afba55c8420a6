"""The operations on platform models: models, deployments, replicas, environments."""
