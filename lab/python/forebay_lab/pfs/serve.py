"""The process of an emulator: ``python -m forebay_lab.pfs.serve DESCRIPTOR``.

``forebay._daemon.serve`` detaches it.
"""

from __future__ import annotations

import os
import sys

from forebay._daemon.serve import main

__all__ = ["serve"]


def serve(configuration: str) -> None:
    """Serve until a request or SIGTERM ends it."""
    from forebay_lab import _native

    # The kernel has already applied the umask of the program that creates a file.
    os.umask(0)
    _native.pfs_serve(configuration)


if __name__ == "__main__":
    sys.exit(main(serve))
