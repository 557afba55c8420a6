"""Files that this process inherited open, such as the lock on the data directory of `tollgate up`."""

import os
from contextlib import suppress


def keep_inherited_files() -> None:
    """Let no child inherit them: a job that outlives the product must not hold its lock."""
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            with suppress(OSError):  # the descriptor of the listing itself
                os.set_inheritable(int(name), False)
