"""The process of a server: ``python -m forebay.tools.pfs.serve DESCRIPTOR``.

Only ``start`` starts it.

It reads the configuration from standard input and forks, so that its parent has no child to wait
for. The child leaves the session, the terminal and the working directory, and serves until a
request or SIGTERM ends it. DESCRIPTOR is the end of a pipe that stays open as long as the child
lives. Standard error is a log file beside the socket, removed at the end if it is empty.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

__all__ = ["main", "serve"]


def serve(configuration: str) -> None:
    """Serve until the end, then remove an empty log."""
    from forebay import _native
    from forebay.tools.pfs.directory import log_of

    # The kernel has already applied the umask of the program that creates a file.
    os.umask(0)
    _native.pfs_serve(configuration)
    log = log_of(Path(json.loads(configuration)["socket"]))
    if log.exists() and log.stat().st_size == 0:
        log.unlink()


def main() -> int:
    """Detach and serve."""
    configuration = sys.stdin.read()
    # Before any thread starts.
    if os.fork():
        # Without cleaning up or flushing: the child does both.
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
