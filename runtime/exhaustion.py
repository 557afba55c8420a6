"""Limits of a process on file descriptors and memory, and the errors that tell that one is reached.

The kernel hands out the lowest free descriptor, so a new one's number says how many are left.
"""

import errno
import os
import resource

SPARE_DESCRIPTORS = 32
"""Kept from connections of calls: for journals, the policy replica, name look-ups and new connections to Redis."""
REFUSING_DESCRIPTORS = 32
"""Kept besides for callers who are only told that there is no room."""
_LEAST_PARTS = 8
"""The part of a low limit that each of the two keeps at most."""
_NO_DESCRIPTOR = frozenset((errno.EMFILE, errno.ENFILE))
_NO_MEMORY = frozenset((errno.ENOMEM, errno.ENOBUFS))
_NO_THREAD = "can't start new thread"


def is_out_of_descriptors(error: BaseException) -> bool:
    """Whether the process, or the machine, had no file descriptor left."""
    return isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the process may take no more memory. A thread's stack is memory, too."""
    if isinstance(error, OSError):
        return error.errno in _NO_MEMORY
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and str(error) == _NO_THREAD)


def no_descriptor_is_left() -> bool:
    """Try it: some libraries report a lack of descriptors as another error."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return is_out_of_descriptors(error)
    return False


def out_of_descriptors() -> OSError:
    """The error of a call that would take a descriptor that is kept for others."""
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def descriptor_limit() -> int:
    """How many file descriptors this process may have (`ulimit -n`)."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def highest_descriptor(spare: int) -> int:
    """The highest number of a descriptor that leaves `spare` of them, fewer where the limit is low."""
    limit = descriptor_limit()
    return limit - min(spare, limit * spare // (SPARE_DESCRIPTORS * _LEAST_PARTS)) - 1


def raise_descriptor_limit() -> None:
    """Raise this process's soft limit to the hard one. Its children inherit it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def memory_limit() -> int | None:
    """How many bytes of address space this process may have (`ulimit -v`); None if that is not limited."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit
