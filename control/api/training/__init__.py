"""The operations on training: projects, jobs, their logs, metrics, checkpoints and interactive sessions."""
