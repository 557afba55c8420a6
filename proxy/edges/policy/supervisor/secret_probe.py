"""Checks that the keys of TOLLGATE_SECRET_KEY open the secrets in the policy replica. Used by the supervisor only."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from proxy.edges.policy.supervisor.replica_listing import NoReplicaFileError, open_replica_listing
from proxy.records.supervisor.findings import OK, Finding
from proxy.records.supervisor.policy_replica import ReplicaVersion

REMEDY = "Set TOLLGATE_SECRET_KEY to the key list that control has"


class SecretProbe:
    """Tries every secret once per revision of policy and list of keys, in a thread. Takes some microseconds each."""

    def __init__(self, replica_path: Path, keys: Sequence[bytes]) -> None:
        self._replica_path = replica_path
        self._keys = keys
        self._checked = (ReplicaVersion(), keys[:])
        self._finding = OK

    async def finding(self, version: ReplicaVersion) -> Finding:
        """Return a fault if no secret opens, a degraded finding if some do not. `version`: the current replica's."""
        present = (version, self._keys[:])
        if present != self._checked:
            self._finding = await asyncio.to_thread(self._check_all)
            self._checked = present
        return self._finding

    def _check_all(self) -> Finding:
        try:
            with open_replica_listing(self._replica_path, self._keys) as listing:
                unopened, total = listing.unopened_secrets(self._keys)
        except NoReplicaFileError:  # no policy yet: the check `policy` reports that
            return OK
        if not unopened:
            return OK
        text = f"{unopened} of {total} stored secrets cannot be opened. {REMEDY}"
        return Finding(fault=text) if unopened == total else Finding(degraded=text)
