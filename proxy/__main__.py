"""`python -m proxy` is `tollgate proxy`."""

import os

from runtime.imports import without_collections
from runtime.private_files import UMASK

with without_collections():
    from proxy.command import main

if __name__ == "__main__":
    os.umask(UMASK)
    main()
