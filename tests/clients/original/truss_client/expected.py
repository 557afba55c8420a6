"""Functions and commands of `truss` that are refused on purpose, and those that do not work yet."""

from collections.abc import Mapping

NO_BUILD = "Tollgate builds no models"
FIXED_CAPACITY = "TOLLGATE_TRAINING_CAPACITY"
NO_QUESTION = "Tollgate answers one GraphQL question"
REFUSED = {
    "whoami": NO_QUESTION,
    "get_deployment_config": NO_BUILD,
    "model-config": NO_BUILD,
    "update_team_training_gpu_capacity": FIXED_CAPACITY,
    "train capacity update": FIXED_CAPACITY,
    "sign_ssh_certificate": "shells in a browser",
}
"""The refused ones (with their case), and what the refusal must say."""
OPEN: Mapping[str, str] = {}
"""The failing ones, and why."""
