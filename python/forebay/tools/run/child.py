"""Start a program and wait for its end, unnoticed by the program and by the caller.

The program stays in the process group, with the terminal and the standard streams of the caller.
Signals that the terminal sends reach both processes. This one does nothing about SIGINT and
SIGQUIT; it forwards the signals in :data:`FORWARDED`, which other processes send to it alone. A
program that is stopped stops this process, so that a shell sees the job stop. If a signal ends the
program, the same signal ends this process.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from forebay.tools.run.program import NotFoundError

__all__ = [
    "FORWARDED",
    "become",
    "end_as",
    "hold_signals",
    "start",
    "terminal_signals_left_to_program",
    "wait",
]

FORWARDED = frozenset(
    (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGTSTP)
)
# The terminal sends them to the program as well.
_LEFT_TO_PROGRAM = (signal.SIGINT, signal.SIGQUIT)
# Of a signal that the terminal sent, to the whole process group (sigaction(2)).
_SI_KERNEL = 0x80
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
# A terminal stops a job with these. Who sends SIGSTOP to the program means it alone.
_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


@contextmanager
def terminal_signals_left_to_program() -> Iterator[None]:
    """Do nothing about SIGINT and SIGQUIT."""
    before = {number: signal.getsignal(number) for number in _LEFT_TO_PROGRAM}
    # A handler, unlike SIG_IGN, is not inherited by the program; what is ignored stays ignored.
    held = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}
    try:
        for number in held:
            signal.signal(number, lambda *_: None)
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)


@contextmanager
def hold_signals() -> Iterator[frozenset[int]]:
    """Let signals wait until :func:`wait` forwards them; yields the mask for the program.

    To be called before any thread starts, as threads inherit the mask.
    """
    # Ignored by who started this process, it would leave no child to wait for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD}))
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def start(path: str, command: tuple[str, ...], environment: dict[str, str], mask: frozenset[int]) -> int:
    """Start a program; return its process id.

    Raises
    ------
    NotFoundError
        If the system cannot start it.
    """

    def spawn(path: str, command: tuple[str, ...]) -> int:
        return os.posix_spawn(path, command, environment, setsigmask=mask, setsigdef=_IGNORED_BY_PYTHON)

    return _as_a_shell(spawn, path, command)


def become(path: str, command: tuple[str, ...], environment: dict[str, str]) -> NoReturn:
    """Replace this process by a program.

    Raises
    ------
    NotFoundError
        If the system cannot start it.
    """

    def execute(path: str, command: tuple[str, ...]) -> NoReturn:
        os.execve(path, command, environment)

    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    _as_a_shell(execute, path, command)
    raise AssertionError("exec returned")


def _as_a_shell(start: Callable[[str, tuple[str, ...]], int], path: str, command: tuple[str, ...]) -> int:
    """Start a program; hand a script without ``#!`` to sh, as shells and ``execvp`` do."""
    try:
        try:
            return start(path, command)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            return start("/bin/sh", ("sh", path, *command[1:]))
    except OSError as error:
        status = 127 if error.errno == errno.ENOENT else 126
        raise NotFoundError(f"{command[0]}: cannot be started: {error.strerror}", status) from None


def wait(pid: int) -> int:
    """Wait for the end of a program, forwarding signals; return its wait status."""
    while True:
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if found == 0:
            caught = signal.sigwaitinfo(FORWARDED | {signal.SIGCHLD})
            if caught.si_signo in FORWARDED and caught.si_code != _SI_KERNEL:
                with suppress(ProcessLookupError):
                    os.kill(pid, caught.si_signo)
        elif os.WIFSTOPPED(status):
            if os.WSTOPSIG(status) in _STOPS and _is_stopped(pid):
                os.kill(os.getpid(), signal.SIGSTOP)
        else:
            # What came for the program after its end.
            while signal.sigtimedwait(FORWARDED, 0) is not None:
                pass
            return status


def _is_stopped(pid: int) -> bool:
    """Whether a process, which may have gone on since, is stopped."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
        return file.read().rpartition(b")")[2].split()[0] == b"T"


def end_as(status: int) -> int:
    """End by the signal of a wait status; return the exit status if it has none."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # The core of this process is of no interest, and would replace the program's.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number
