"""The environment variables of a node's commands, on every backend: these, the job's own, and nothing else.

See docs/reference/training.md#what-a-job-sees.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policy.training.job_variables import CHECKPOINT_DIR, JOB_ID, LEADER_ADDR, NODE_COUNT, NODE_RANK

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class NodePlace:
    """A node among those of its job, and its directories. `path`: where its machine has programs.

    `user`: the name of its user where the machine has none; "" otherwise.
    """

    job_id: str
    rank: int
    node_count: int
    leader: str
    home: str
    temporary: str
    checkpoints: str
    path: str = DEFAULT_PATH
    user: str = ""


def node_environment(place: NodePlace, own: Mapping[str, str]) -> dict[str, str]:
    """The job's own variables may replace the usual ones, but not those that say which node this is."""
    usual = {
        "PATH": place.path,
        "HOME": place.home,
        "LANG": "C.UTF-8",
        "TMPDIR": place.temporary,
        "PYTHONUNBUFFERED": "1",
    }
    if place.user:
        usual |= {"USER": place.user, "LOGNAME": place.user}
    fixed = {
        JOB_ID: place.job_id,
        NODE_RANK: str(place.rank),
        NODE_COUNT: str(place.node_count),
        LEADER_ADDR: place.leader,
        CHECKPOINT_DIR: place.checkpoints,
    }
    return usual | dict(own) | fixed
