"""The environment variables that a job sees besides its own.

See docs/reference/training.md#what-a-job-sees.
"""

JOB_ID = "TOLLGATE_JOB_ID"
NODE_RANK = "TOLLGATE_NODE_RANK"
NODE_COUNT = "TOLLGATE_NODE_COUNT"
LEADER_ADDR = "TOLLGATE_LEADER_ADDR"
"""A host, no port."""
CHECKPOINT_DIR = "TOLLGATE_CHECKPOINT_DIR"
