"""The environment variables of a node's commands, on every backend: these, the job's own, and nothing else.

See docs/reference/training.md#what-a-job-sees.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policy.training import job_variables as names
from policy.training.reports import Claimed

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class NodePlace:
    """A node among those of its job, and its directories. `path`: where its machine has programs.

    `user`: the name of its user where the machine has none; "" otherwise. `cache`, `weights`: None where the job has
    none. `image_variables`: what the image that it runs in sets.
    """

    job: Claimed
    rank: int
    leader: str
    home: str
    working: str
    temporary: str
    checkpoints: str
    loads: str
    cache: str | None = None
    weights: str | None = None
    path: str = DEFAULT_PATH
    user: str = ""
    image_variables: Mapping[str, str] = field(default_factory=dict)


def node_environment(place: NodePlace, own: Mapping[str, str]) -> dict[str, str]:
    """The job's own variables may replace the usual ones, but not those that say which node this is."""
    usual = {
        "PATH": place.path,
        "HOME": place.home,
        "LANG": "C.UTF-8",
        "TMPDIR": place.temporary,
        "PYTHONUNBUFFERED": "1",
    }
    if place.cache is not None and place.job.spec.cache is not None and place.job.spec.cache.is_hf_home:
        usual["HF_HOME"] = f"{place.cache}/huggingface"
    if place.user:
        usual |= {"USER": place.user, "LOGNAME": place.user}
    fixed = {
        names.JOB_ID: place.job.job_id,
        names.NODE_RANK: str(place.rank),
        names.NODE_COUNT: str(place.job.spec.node_count),
        names.LEADER_ADDR: place.leader,
        names.CHECKPOINT_DIR: place.checkpoints,
    }
    if place.cache is not None:
        cache_names = (names.CACHE_DIR, names.BT_PROJECT_CACHE_DIR, names.BT_RW_CACHE_DIR)
        fixed |= dict.fromkeys(cache_names, place.cache)
    if place.job.spec.load is not None:
        fixed |= {names.LOAD_DIR: place.loads, names.BT_LOAD_DIR: place.loads}
    if place.weights is not None:
        fixed |= {names.WEIGHTS_DIR: place.weights, names.BT_WEIGHTS_DIR: place.weights}
    return dict(place.image_variables) | usual | dict(own) | fixed | _of_the_original(place)


def _of_the_original(place: NodePlace) -> dict[str, str]:
    """The names that scripts for the original read."""
    job = place.job
    variables = {
        names.BT_JOB_ID: job.job_id,
        names.BT_JOB_NAME: job.job_name or job.job_id,
        names.BT_NODE_RANK: str(place.rank),
        names.BT_NODE_COUNT: str(job.spec.node_count),
        names.BT_LEADER_ADDR: place.leader,
        names.BT_GPU_COUNT: str(job.spec.resources.gpu_count),
        names.BT_RETRY_COUNT: str(job.attempt - 1),
        names.BT_WORKING_DIR: place.working,
        names.BT_SCRATCH_DIR: place.temporary,
        names.BT_CHECKPOINT_DIR: place.checkpoints,
    }
    if job.project_id:
        variables |= {names.BT_PROJECT_ID: job.project_id, names.BT_PROJECT_NAME: job.project_name}
    return variables
