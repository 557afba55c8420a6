"""Reports groups and keys in the policy replica that this version cannot read. Used by the supervisor only."""

import asyncio
from pathlib import Path

from proxy.edges.policy.supervisor.replica_listing import NoReplicaFileError, open_replica_listing
from proxy.records.supervisor.findings import OK, Finding
from proxy.records.supervisor.policy_replica import ReplicaVersion


class GroupProbe:
    """Counts them once per revision of policy, in a thread."""

    def __init__(self, replica_path: Path) -> None:
        self._replica_path = replica_path
        self._checked_version = ReplicaVersion()
        self._finding = OK

    async def finding(self, version: ReplicaVersion) -> Finding:
        """Return a degraded finding if there are some. `version` is the replica's current one."""
        if version != self._checked_version:
            self._finding = await asyncio.to_thread(self._count)
            self._checked_version = version
        return self._finding

    def _count(self) -> Finding:
        try:
            with open_replica_listing(self._replica_path, ()) as listing:
                counts = (
                    (listing.unreadable_groups(), "group", "limits"),
                    (listing.unreadable_keys(), "key", "settings"),
                )
        except NoReplicaFileError:  # no policy yet: the check `policy` reports that
            return OK
        texts = [
            f"calls of {count} {kind}{'s' if count > 1 else ''} are answered 503: this version cannot read the {what}"
            for count, kind, what in counts
            if count
        ]
        return Finding(degraded="; ".join(texts) + ". Update it") if texts else OK
