"""`python -m control` is `tollgate control`."""

import os

from runtime.imports import without_collections
from runtime.private_files import UMASK

with without_collections():
    from control.command import main

if __name__ == "__main__":
    os.umask(UMASK)
    main(prog_name="tollgate control")
