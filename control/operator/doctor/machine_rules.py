"""Findings about disks, upstreams and processes, by what was seen of them. No I/O."""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from control.edges.inspection.disk_look import DiskLook
from control.edges.inspection.process_look import ReadyLook
from control.edges.inspection.upstream_look import Origin, UpstreamLook
from control.operator.doctor.findings import Finding, fault, ok, warning
from policy.hosts import Reach

_MIB = 1 << 20
_LITTLE_BYTES = 2048 * _MIB
_TOO_LITTLE_BYTES = 256 * _MIB
_JOURNAL_BYTES = 24 * _MIB
"""The most that one worker's journals in memory take."""
_TOO_FEW_FILES = 1000
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
_ROOM_REMEDY = "Make room: without space calls are refused. Never delete journals"
_EXPIRES_DAYS = 14.0
_RENEW = "Put a renewed certificate and its key into the files; no restart is needed"
_USERS_SHOWN = 3


def disk_findings(look: DiskLook, holds: str) -> Iterator[Finding]:
    """`holds`: what the directory holds, such as "journal"."""
    where = f"{holds}: {look.path}"
    if look.trouble:
        remedy = _ROOM_REMEDY if look.trouble in _FULL else "Run as its owner, or mend the disk"
        yield fault("disk", f"{where} cannot be written ({look.trouble})", remedy)
        return
    room = f"{look.free_bytes / 1e9:.1f} GB free"
    if look.free_bytes < _TOO_LITTLE_BYTES:
        yield fault("disk", f"{where}: {room}", _ROOM_REMEDY)
    elif look.free_bytes < _LITTLE_BYTES:
        yield warning("disk", f"{where}: {room}", "Make room, or lower TOLLGATE_SHIPPED_MAX_BYTES")
    else:
        yield ok("disk", f"{where}: {room}")
    if look.free_files is not None and look.free_files < _TOO_FEW_FILES:
        yield fault("disk", f"{where}: {look.free_files} more files fit", "Delete small files elsewhere on this disk")


def memory_findings(look: DiskLook, directory: Path) -> Iterator[Finding]:
    """Look at `directory`, in memory, to which workers write journals first. Without it they wait for the disk."""
    trouble = look.trouble or ("there is no such directory" if look.path != directory else "")
    if trouble:
        text = f"journals in memory: {directory} cannot be used ({trouble})"
    elif look.free_bytes < _JOURNAL_BYTES:
        text = f"journals in memory: {directory}: {look.free_bytes >> 20} MiB free"
    else:
        yield ok("disk", f"journals in memory: {directory}: {look.free_bytes >> 20} MiB free")
        return
    remedy = "Calls wait while the disk stalls: give it room, or name other memory in TOLLGATE_JOURNAL_MEMORY_DIR"
    yield warning("disk", text, remedy)


def upstream_findings(looks: Mapping[Origin, UpstreamLook], users: Mapping[Origin, Sequence[str]]) -> Iterator[Finding]:
    """`users`: the slugs and deployments that lead to each."""
    well = [origin for origin, look in looks.items() if not look.trouble]
    if well:
        yield ok("upstreams", f"{len(well)} of {len(looks)} can be reached")
    for origin, look in looks.items():
        of = ", ".join(users[origin][:_USERS_SHOWN]) + (" and more" if len(users[origin]) > _USERS_SHOWN else "")
        if look.trouble:
            level = fault if origin.reach is Reach.OPERATOR else warning
            yield level("upstreams", f"{origin} ({of}): {look.trouble}", _remedy(look))
        elif look.certificate_days is not None and look.certificate_days < _EXPIRES_DAYS:
            text = f"{origin} ({of}): its certificate ends in {look.certificate_days:.0f} days"
            yield warning("upstreams", text, "Tell whoever runs it")


def certificate_findings(days: float, valid_until: str) -> Iterator[Finding]:
    """`days`: for how long our own certificate is valid; below 0 if it has ended."""
    text = f"TOLLGATE_TLS_CERT_FILE: valid until {valid_until}"
    if days < 0:
        yield fault("certificate", text + ", which is over: callers refuse it", _RENEW)
    elif days < _EXPIRES_DAYS:
        yield warning("certificate", f"{text}, in {days:.0f} days", _RENEW)
    else:
        yield ok("certificate", text)


def _remedy(look: UpstreamLook) -> str:
    if "has expired" in look.trouble or "not yet valid" in look.trouble:
        return "Tell whoever runs it, unless this machine's clock is wrong"
    if "mismatch" in look.trouble:
        return "Another server answers under this name: look at the URL, its DNS, and links of TOLLGATE_EGRESS_ALLOW"
    if "certificate" in look.trouble:
        return "If it is a private authority's, name that in TOLLGATE_EGRESS_CA_FILE"
    if "dialled" in look.trouble:
        return "If it is yours, allow its network in TOLLGATE_EGRESS_ALLOW, where proxies and control run"
    return "Look at its name, its firewall and its server, from this machine"


def ready_findings(look: ReadyLook, who: str, url: str) -> Iterator[Finding]:
    if look.trouble:
        yield fault(who, f"{url}: {look.trouble}", "Start it, or mend the URL; its log says why it ended")
        return
    for text in look.faults:
        yield fault(who, f"not ready: {text}", "The text names the remedy; so does its log")
    for text in look.degraded:
        yield warning(who, f"degraded: {text}", "The text names the remedy; so does its log")
    if not look.faults and not look.degraded:
        yield ok(who, f"{url} is ready")
