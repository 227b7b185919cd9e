"""Start ranks under the MPI of this Python environment, and leave no rank behind.

`mpiexec` comes from this interpreter's own `bin`, where the PyPI wheels of Open MPI and MPICH put
it, never from PATH: the launcher of another MPI would start N worlds of one rank. The ranks run in
a session of their own. On Ctrl-C, a deadline or an error, this module terminates the launcher,
which ends its ranks, and kills the rest of the session. Output is captured; lines that begin with
`PROGRESS_MARK` report progress.

On an emulated cluster the launcher runs in the hub and starts its ranks on the nodes through the
cluster's stand-in for ssh. A rank that outlives a killed launcher ends with `Cluster.clear`, or
with the cluster.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from forebay._core import ForebayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from forebay_lab.cluster import Cluster

PROGRESS_MARK = "@step"
"""Begins a line of progress on a rank's standard output: the mark, a space, steps done."""

_TAIL_LINES = 40
_GRACE_S = 5.0
_LOOK_S = 0.1
_THREAD_HINT = "hint: look at the limits on processes: ulimit -u, and pids.max of the control group"
_HINT = "hint: pip install 'forebay[mpi]'"


class LaunchError(ForebayError):
    """Ranks did not start, or failed; the message ends with the last lines of their output."""


def missing_mpi(ranks: int) -> str | None:
    """Return why `command` cannot work, or None if nothing is known without starting it."""
    if importlib.util.find_spec("mpi4py") is None:
        return f"MPI for {ranks} ranks: the package mpi4py is not installed in {sys.prefix}"
    if not (mpiexec := _mpiexec()).exists():
        return f"MPI for {ranks} ranks: expected a launcher at {mpiexec}, found none"
    return None


def command(
    ranks: int,
    program: Sequence[str],
    cluster: Cluster | None = None,
    per_node: Sequence[int] = (),
    prefix: Sequence[str] = (),
) -> list[str]:
    """Return the command that starts `ranks` copies of ``python -m mpi4py PROGRAM``.

    Parameters
    ----------
    ranks
        How many.
    program
        What Python runs.
    cluster
        Start them on its nodes.
    per_node
        With it: ranks of each node; they are numbered node by node.
    prefix
        What each rank executes, with its Python and the program behind it.

    Raises
    ------
    LaunchError
        No MPI in this environment.
    """
    if (missing := missing_mpi(ranks)) is not None:
        raise LaunchError(f"{missing}\n{_HINT}")
    mpiexec = _mpiexec()
    hydra = _is_hydra(mpiexec)
    flags = [] if hydra else _OPEN_MPI_FLAGS
    if cluster is not None:
        hosts = ",".join(f"{name}:{count}" for name, count in zip(cluster.names, per_node, strict=True))
        flags = [*flags, *_places(hydra, cluster.shell, hosts)]
    whole = [str(mpiexec), *flags, "-n", str(ranks), *prefix]
    whole += [sys.executable, "-m", "mpi4py", *program]
    if cluster is not None:
        # Files of the launcher and of MPI go into the memory of hub and nodes, and with them.
        whole = cluster.in_hub(["env", "TMPDIR=/dev/shm", *whole])
    return whole


# More ranks than cores is the normal case here; ob1 with shared memory starts 1 s faster than the
# defaults.
_OPEN_MPI_FLAGS = [
    "--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp",
]  # fmt: skip


def _places(hydra: bool, shell: str, hosts: str) -> list[str]:
    """Return the launcher's flags for a cluster: how to reach a node, and its number of ranks."""
    if hydra:
        return ["-launcher", "ssh", "-launcher-exec", shell, "-hosts", hosts]
    # Open MPI looks for this program on every node; the shell is there, the stand-in only in the
    # hub.
    return ["--prtemca", "plm_ssh_agent", f"/bin/sh {shell}", "--host", hosts]


def environment() -> dict[str, str]:
    """Return the environment of the ranks: ours, one BLAS thread each, root allowed, idle waits."""
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PMI_"))
    }
    for library in ("OMP", "OPENBLAS", "MKL", "BLIS"):
        variables[f"{library}_NUM_THREADS"] = "1"
    # On an emulated cluster, its user is root.
    variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # MPICH waits busily by default, 100 times slower than this where ranks outnumber cores.
    variables |= {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "MPIR_CVAR_POSIX_POLL_FREQUENCY": "1"}
    return variables


def run(
    arguments: Sequence[str],
    *,
    deadline_s: float,
    progress: Callable[[int], None],
    what: str = "training run",
    interrupts: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run a command from `command` to its end.

    Parameters
    ----------
    arguments
        The command.
    deadline_s
        After this many seconds it is ended and an error raised.
    progress
        Called, in a thread of its own, with the steps done.
    what
        What runs, for messages.
    interrupts
        What `held_interrupts` gives; once there is something in it, the command is ended.
    variables
        Environment variables beside those of `environment`.

    Raises
    ------
    LaunchError
        It failed or took too long; the message ends with the last lines of its output.
    """
    tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
    code: int | None = None
    with subprocess.Popen(
        arguments,
        env=environment() | dict(variables or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            reader = threading.Thread(target=_relay, args=(process, tail, progress), daemon=True)
            try:
                reader.start()
            except RuntimeError as error:
                raise LaunchError(
                    f"{what}: cannot start a thread that reads its output: {error}\n{_THREAD_HINT}"
                ) from error
            end = time.monotonic() + deadline_s
            while code is None and not interrupts and time.monotonic() < end:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(timeout=_LOOK_S)
        finally:
            _end(process)
        reader.join(timeout=_GRACE_S)
    if interrupts:
        raise KeyboardInterrupt
    if code is None:
        raise LaunchError(
            f"{what}: expected an end within {deadline_s:.0f} s, found it still running\n" + "".join(tail)
        )
    if code != 0:
        raise LaunchError(f"{what}: expected exit code 0, found {code}\n" + "".join(tail))


@contextlib.contextmanager
def held_interrupts() -> Iterator[list[int]]:
    """Note Ctrl-C in a list and raise it when the block is left.

    At any other moment it could come between the start of a process, or the making of a directory,
    and our knowing it, or into the ending of it.
    """
    held: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)
        # Also in place of an error: the programs that we wait for get the signal, too, and fail.
        if held:
            raise KeyboardInterrupt


@contextlib.contextmanager
def terminations_as_interrupts() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that a batch system or `timeout` leaves as little behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Code that defers interrupts also defers this one.
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(number, frame)


def _relay(
    process: subprocess.Popen[str], tail: collections.deque[str], progress: Callable[[int], None]
) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        mark, _, steps = line.partition(" ")
        if mark == PROGRESS_MARK and steps.strip().isdigit():
            progress(int(steps))
        else:
            tail.append(line)


def _end(process: subprocess.Popen[str]) -> None:
    """End the launcher and everything in its session, gently first."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE_S)
    # The session's first process is the launcher, so its id is the group's; gone already is what we
    # want.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.poll() is None:
        process.wait()
    _end_ranks(process.pid)


def _end_ranks(session: int) -> None:
    """Kill what is left of a session: Open MPI gives each rank a process group of its own in it."""
    for _ in range(50):
        left = [pid for pid in _processes() if _session_of(pid) == session]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _mpiexec() -> Path:
    return Path(sys.prefix, "bin", "mpiexec")


def _is_hydra(mpiexec: Path) -> bool:
    """Whether the launcher is MPICH's."""
    try:
        said = subprocess.run(
            [mpiexec, "--version"], capture_output=True, text=True, timeout=30, env=environment()
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "hydra" in said.stdout.lower()
