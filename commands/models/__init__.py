"""`tollgate models`: platform models, their deployments and environments (docs/reference/command-line.md#models)."""
