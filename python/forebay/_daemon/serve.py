"""The process of a daemon: ``python -m MODULE DESCRIPTOR``, which only ``Kind.launch`` starts.

It reads the configuration from standard input and forks, so that its parent has no child to wait
for. The child leaves the session, the terminal and the working directory, drops what it inherited
(``inherited.py``), and serves until a request or SIGTERM ends it. DESCRIPTOR is the end of a pipe
that stays open while the child lives.
Standard error is a log file beside the socket, removed at the end if it is empty.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from forebay._daemon.inherited import drop_inherited

__all__ = ["main", "remove_empty_log"]


def main(serve: Callable[[str], None]) -> int:
    """Detach, and serve the configuration of standard input."""
    configuration = sys.stdin.read()
    # Before any thread starts.
    if os.fork():
        # Without cleaning up or flushing: the child does both.
        os._exit(0)
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    drop_inherited(keep=(int(sys.argv[1]),))
    from forebay._core import ForebayError

    try:
        serve(configuration)
    except (ForebayError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    remove_empty_log(configuration)
    return 0


def remove_empty_log(configuration: str) -> None:
    """Remove the log of a daemon that reported nothing."""
    from forebay._daemon.kind import log_of

    log = log_of(Path(json.loads(configuration)["socket"]))
    if log.exists() and log.stat().st_size == 0:
        log.unlink()
