"""Memory of a process as the kernel shares it out: /proc/PID/smaps_rollup (proc_pid_smaps(5))."""

from __future__ import annotations

from pathlib import Path

__all__ = ["anonymous_bytes", "pss_bytes", "smaps"]


def smaps(pid: int | str = "self") -> dict[str, int]:
    """Return the sizes of a process, by the kernel's names [bytes].

    Raises
    ------
    OSError
        If the process has ended, or belongs to another user.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()[1:]
    return {name: int(value.split()[0]) << 10 for name, value in (line.split(":") for line in lines)}


def pss_bytes(pid: int | str = "self") -> int:
    """Return the proportional set size: private pages, and its share of shared ones."""
    return smaps(pid)["Pss"]


def anonymous_bytes(pid: int | str = "self") -> int:
    """Return the part of it that no file backs."""
    found = smaps(pid)
    return found["Pss_Anon"] + found["Pss_Shmem"]
