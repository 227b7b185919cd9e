"""What can be said of a program before it starts: where it is, and whether it can be served.

The preload library is a library for one machine and one C library. The dynamic linker of another
one complains about it on the program's stderr, or ends the program. So the header of the program is
read first; that of a script's interpreter for a script.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["NotFoundError", "Outlook", "find", "loading_problem", "outlook"]

# Longest chain of scripts that the kernel follows (`BINPRM_MAX_RECURSION` and the program).
_MAX_SCRIPTS = 5

# What the kernel reads of the first line of a script [bytes].
_SCRIPT_LINE_BYTES = 256

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB = 1, 5

# Parts of a program that are read must be shorter than this [bytes].
_MAX_PART_BYTES = 1 << 20

# They start ranks, also on other nodes, where no daemon runs.
_MPI_LAUNCHERS = frozenset(
    ("mpiexec", "mpirun", "mpiexec.hydra", "orterun", "prterun", "prun", "srun", "aprun", "jsrun")
)
# They start programs where other files are to be seen.
_CONTAINERS = frozenset(
    ("apptainer", "singularity", "docker", "podman", "enroot", "shifter", "charliecloud", "ch-run")
)


class NotFoundError(Exception):
    """No program can be started; ``status`` is what a shell returns for that."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Outlook(NamedTuple):
    """Whether a program can be served."""

    can_preload: bool
    """Whether it starts with the library."""
    notes: tuple[str, ...]
    """For people."""
    refusal: str | None = None
    """Why it must not be started with the library."""


class _Elf(NamedTuple):
    machine: tuple[int, int, int]
    """Class, byte order and machine."""
    interpreter: str | None
    """The dynamic linker; None for a static program."""
    needed: tuple[str, ...]
    """The libraries that it names."""


def find(name: str, environment: Mapping[str, str]) -> str:
    """Return the path of a program as ``execvp`` finds it.

    Raises
    ------
    NotFoundError
        If there is none (127), or it is not executable (126).
    """
    if "/" in name:
        paths = [name]
    else:
        paths = [f"{directory or '.'}/{name}" for directory in os.get_exec_path(environment)] if name else []
    is_there = False
    for path in paths:
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116 - the path is the program's
        except OSError as error:
            is_there = is_there or error.errno == errno.EACCES
            continue
        if stat.S_ISREG(mode) and os.access(path, os.X_OK):
            return path
        is_there = True
    if is_there:
        raise NotFoundError(f"{name}: not executable", 126)
    raise NotFoundError(f"{name}: command not found", 127)


def outlook(path: str, command: tuple[str, ...], environment: Mapping[str, str]) -> Outlook:
    """Return whether the program at ``path`` can be served."""
    notes = []
    name = Path(command[0]).name
    if name in _MPI_LAUNCHERS:
        notes.append(
            f"{name} may start programs on other nodes, and those read the source; "
            f"write: {name} [its options] forebay run [options] -- PROGRAM"
        )
    if name in _CONTAINERS:
        notes.append(
            f"programs in a container are served only if the container has the Forebay package, the tiers, "
            f"FOREBAY_RUNTIME_DIR and /dev/shm at the same paths; else start forebay run inside of {name}"
        )
    # What cannot be read is for the system to judge.
    try:
        return _judge(*_behind_scripts(path, environment), environment, notes)
    except (OSError, ValueError, struct.error, IndexError):
        return Outlook(True, tuple(notes))


def loading_problem(library: Path) -> str | None:
    """Return what the dynamic linker says of a library that is preloaded; None if it loads."""
    ours, theirs = os.pipe()
    try:
        actions = [(os.POSIX_SPAWN_DUP2, theirs, 2)]
        pid = os.posix_spawn("/bin/true", ["true"], {"LD_PRELOAD": str(library)}, file_actions=actions)
    except OSError:
        os.close(theirs)
        os.close(ours)
        return None
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        said = answer.read().decode(errors="replace").strip()
    os.waitpid(pid, 0)
    return said or None


def _judge(path: str, elf: _Elf | None, environment: Mapping[str, str], notes: list[str]) -> Outlook:
    if elf is None:
        return Outlook(True, tuple(notes))
    if elf.machine != _own_machine():
        notes.append(f"{path} is a program for another machine or word size: it reads the source")
        return Outlook(False, tuple(notes))
    if elf.interpreter is not None and "musl" in elf.interpreter:
        notes.append(f"{path} uses another C library (musl): it reads the source")
        return Outlook(False, tuple(notes))
    if elf.interpreter is None:
        notes.append(
            f"{path} is a static program: it reads the source; programs that it starts may be served"
        )
    if _is_privileged(path):
        notes.append(
            f"{path} runs with other privileges (setuid, setgid or capabilities): it reads the source"
        )
    is_sanitized = any(library.startswith("libasan.so") for library in elf.needed)
    if is_sanitized and "verify_asan_link_order=0" not in environment.get("ASAN_OPTIONS", ""):
        return Outlook(
            False,
            tuple(notes),
            f"{path} was built with AddressSanitizer, which ends a program if a library is preloaded\n"
            "hint: set ASAN_OPTIONS=verify_asan_link_order=0",
        )
    return Outlook(True, tuple(notes))


def _behind_scripts(path: str, environment: Mapping[str, str]) -> tuple[str, _Elf | None]:
    """Return the program that runs a script, or the program itself, and its header."""
    for _ in range(_MAX_SCRIPTS):
        with open(path, "rb") as file:  # noqa: PTH123 - the path is the program's
            start = file.read(_SCRIPT_LINE_BYTES)
            if not start.startswith(b"#!"):
                return path, _read_elf(path)
        words = os.fsdecode(start[2:].partition(b"\n")[0]).split()
        path = words[0]
        if Path(path).name == "env":
            names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
            path = find(names[0], environment)
    return path, None


def _own_machine() -> tuple[int, int, int]:
    elf = _read_elf("/proc/self/exe")
    assert elf is not None
    return elf.machine


def _is_privileged(path: str) -> bool:
    """Whether the dynamic linker runs a program in secure-execution mode (ld.so(8))."""
    found = os.stat(path)  # noqa: PTH116
    if found.st_mode & stat.S_ISUID and found.st_uid != os.geteuid():
        return True
    if found.st_mode & stat.S_ISGID and found.st_gid != os.getegid():
        return True
    try:
        return bool(os.getxattr(path, "security.capability")) and os.geteuid() != 0
    except OSError:
        return False


def _read_elf(path: str) -> _Elf | None:
    """Read the header of a program; None if it is no ELF file."""
    with open(path, "rb") as file:  # noqa: PTH123
        header = file.read(64)
        if header[:4] != b"\x7fELF":
            return None
        order = "<" if header[5] == 1 else ">"
        machine = (header[4], header[5], struct.unpack_from(order + "H", header, 18)[0])
        if header[4] != 2:
            return _Elf(machine, None, ())

        def part(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(min(length, _MAX_PART_BYTES))

        offset, size, count = (
            struct.unpack_from(order + "Q", header, 32)[0],
            *struct.unpack_from(order + "HH", header, 54),
        )
        table = part(offset, size * count)
        segments = [struct.unpack_from(order + "IIQQQQ", table, number * size) for number in range(count)]
        interpreter, dynamic = None, b""
        for kind, _, at, _, _, length in segments:
            if kind == _PT_INTERP:
                interpreter = os.fsdecode(part(at, length).rstrip(b"\0"))
            elif kind == _PT_DYNAMIC:
                dynamic = part(at, length)
        # A static program may have a dynamic section: it moves itself (static PIE).
        entries = list(struct.iter_unpack(order + "QQ", dynamic[: len(dynamic) // 16 * 16]))
        strings = b""
        for tag, address in entries:
            if tag == _DT_STRTAB:
                for kind, _, at, virtual, _, length in segments:
                    if kind == _PT_LOAD and virtual <= address < virtual + length:
                        strings = part(at + address - virtual, virtual + length - address)
        needed = [strings[at:].partition(b"\0")[0].decode() for tag, at in entries if tag == _DT_NEEDED]
        return _Elf(machine, interpreter, tuple(needed))
