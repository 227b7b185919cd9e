"""What a daemon must not keep of the process that happened to start it.

The first job of a user starts the daemons of the node, and may be limited, niced or bound to one
core. Daemons serve later jobs, too: they close its descriptors (a lock would stay held, a pipe
open), and take back what the system allows: priority, affinity, signals, umask and soft limits.
They keep namespaces, control groups and seccomp filters: no process can leave these.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Collection
from pathlib import Path

__all__ = ["clean_environment", "drop_inherited", "restart_clean"]

# Libraries that the dynamic linker adds to each program, such as that of `forebay run`.
_LINKER_VARIABLES = ("LD_PRELOAD", "LD_AUDIT")

_LIMITS = (
    resource.RLIMIT_AS,
    resource.RLIMIT_CPU,
    resource.RLIMIT_DATA,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_MEMLOCK,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_STACK,
)


def clean_environment() -> dict[str, str]:
    """Return the environment for a daemon: without libraries that the linker would add."""
    return {name: value for name, value in os.environ.items() if name not in _LINKER_VARIABLES}


def restart_clean() -> None:
    """Start this program anew if the linker added libraries to it."""
    if any(os.environ.get(name) for name in _LINKER_VARIABLES):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], clean_environment())


def drop_inherited(keep: Collection[int] = ()) -> None:
    """Close all descriptors but 0, 1, 2 and those of ``keep``; take back what was inherited else.

    Call it before any thread starts.
    """
    for name in list(Path("/proc/self/fd").iterdir()):
        if (descriptor := int(name.name)) > 2 and descriptor not in keep:
            # That of the listing is closed already.
            with contextlib.suppress(OSError):
                os.close(descriptor)
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError, TypeError):
            signal.signal(number, signal.SIG_DFL)
    # Python ignores these, so that they are errors of calls.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    # The program that starts it may block signals, as `forebay run` does.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o077)
    for limit in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (resource.getrlimit(limit)[1],) * 2)
    # Only root may do some of these.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, min(0, os.getpriority(os.PRIO_PROCESS, 0)))
