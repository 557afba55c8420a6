"""Queries on training: projects, jobs, checkpoints, logs, metrics, sessions and the backend."""
