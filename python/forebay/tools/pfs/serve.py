"""The process of a server: ``python -m forebay.tools.pfs.serve DESCRIPTOR``, started by ``start`` and by nobody else.

The configuration comes on standard input. The process forks, so that whoever started it has no
child to wait for; the child leaves the session, the terminal and the working directory, and serves
until it is told to end or SIGTERM comes. DESCRIPTOR is the end of a pipe that stays open as long as
it lives. What it has to say goes to its standard error, a file beside the socket, which is removed
in the end if nothing is in it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

__all__ = ["main", "serve"]


def serve(configuration: str) -> None:
    """Serve until told to end, then remove an empty log."""
    from forebay import _native
    from forebay.tools.pfs.directory import log_of

    # The kernel has applied the mask of whoever makes a file before it asks us; ours must not come
    # on top.
    os.umask(0)
    _native.pfs_serve(configuration)
    log = log_of(Path(json.loads(configuration)["socket"]))
    if log.exists() and log.stat().st_size == 0:
        log.unlink()


def main() -> int:
    """Detach and serve."""
    configuration = sys.stdin.read()
    # Before anything can start a thread.
    if os.fork():
        # Neither cleans up nor flushes: all that is the child's.
        os._exit(0)
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    from forebay._core import ForebayError

    try:
        serve(configuration)
    except (ForebayError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
