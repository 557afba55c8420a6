"""Functions and commands of `truss` that are refused on purpose, and those that do not work yet."""

NO_QUESTION = "Tollgate answers one GraphQL question"
REFUSED = {
    "create_training_job": "unknown field",  # open: jobs do not take what `truss train push` sends
    "whoami": NO_QUESTION,
}
"""The refused ones (with their case), and what the refusal must say."""
NO_UPLOADS = "Nothing can be uploaded for a job."
NO_DOWNLOAD = "What a job was made of cannot be downloaded."
NO_FILES = "Files are listed per checkpoint, with other members."
NO_METRICS = "Metrics of machines are not collected."
NO_CACHES = "Jobs have no caches."
NO_CAPACITY = "The capacity is not shown, and is a setting."
NO_PRIORITY = "A job's priority cannot be changed."
NO_SESSIONS = "A session's trigger and timeout cannot be changed."
NO_CONFIG = "Tollgate has no configuration of a build to show."
OPEN = {
    "upsert_training_project, team": "Projects are not made below a team.",
    "get_blob_credentials": NO_UPLOADS,
    "train push": NO_UPLOADS,
    "get_training_job_presigned_url": NO_DOWNLOAD,
    "train download": NO_DOWNLOAD,
    "get_training_job_checkpoint_presigned_url": NO_FILES,
    "get_from_presigned_url": NO_FILES,
    "train get_checkpoint_urls": NO_FILES,
    "get_training_job_metrics": NO_METRICS,
    "train metrics": NO_METRICS,
    "get_cache_summary": NO_CACHES,
    "train cache summarize": NO_CACHES,
    "get_training_capacity": NO_CAPACITY,
    "update_team_training_gpu_capacity": NO_CAPACITY,
    "train capacity view": NO_CAPACITY,
    "train capacity update": NO_CAPACITY,
    "update_training_job": NO_PRIORITY,
    "train update": NO_PRIORITY,
    "patch_interactive_session": NO_SESSIONS,
    "update_interactive_session": NO_SESSIONS,
    "train isession, --update-timeout": NO_SESSIONS,
    "train update_session": NO_SESSIONS,
    "get_deployment_config": NO_CONFIG,
    "model-config": NO_CONFIG,
}
"""The failing ones, and why."""
