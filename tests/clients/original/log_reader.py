"""`python -m tests.clients.original.log_reader CONTROL API_KEY PROJECT JOB` prints the messages that the SDK reads.

It reads the job's log once, while it grows: from the millisecond behind the last one on, until the job has ended and
nothing follows.
"""

import json
import sys

from baseten.client import ManagementClient
from baseten.client.managementapi import GetTrainingProjectsJobsLogsParams

from tests.clients.original.training import ENDED

LINES_AT_ONCE = 1000
NS_PER_MS = 1_000_000


def main() -> None:
    control, api_key, project, job = sys.argv[1:]
    api = ManagementClient(api_key=api_key, base_url_override=control).api
    where = {"training_project_id": project, "training_job_id": job}
    messages = list[str]()
    start_ms = 1
    while True:
        answer = api.get_training_projects_jobs_training_job_id(**where)
        has_ended = answer.training_job.current_status in ENDED
        params = GetTrainingProjectsJobsLogsParams(
            direction="asc", limit=LINES_AT_ONCE, start_epoch_millis=start_ms, end_epoch_millis=2**52
        )
        lines = api.get_training_projects_jobs_logs(**where, params=params).logs
        messages += [line.message for line in lines]
        if lines:
            start_ms = int(lines[-1].timestamp) // NS_PER_MS + 1
        elif has_ended:
            break
    print(json.dumps({"messages": messages}))


if __name__ == "__main__":
    main()
