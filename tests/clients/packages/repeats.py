"""Makes the calls that its arguments name at a scripted server, and prints what became of each."""

import os
import sys
from collections.abc import Callable, Mapping

from tollgate_client import Retries, Tollgate, TollgateError
from tollgate_client.models import CreateWorkspaceKeyRequestV1, CreateWorkspaceKeyRequestV1Type

BODY = CreateWorkspaceKeyRequestV1(type_=CreateWorkspaceKeyRequestV1Type.WORKSPACE_INVOKE)


def main() -> None:
    retries = Retries(first_wait_s=0.01, longest_wait_s=2)
    with Tollgate(os.environ["TOLLGATE_URL"], os.environ["TOLLGATE_API_KEY"], retries=retries) as tollgate:
        calls: Mapping[str, Callable[[], object]] = {
            "read": tollgate.groups.list_groups,
            "create": lambda: tollgate.api_keys.create_api_key(body=BODY),
            "create_own": lambda: tollgate.api_keys.create_api_key(body=BODY, idempotency_key="own"),
            "act": lambda: tollgate.deployments.retry_deployment("m", "d"),
        }
        for name in sys.argv[1:]:
            try:
                calls[name]()
                print("ok")
            except TollgateError as error:
                print(error.code)


if __name__ == "__main__":
    main()
