"""Memory limits of emulated nodes: a memory control group for each (``--node-memory``).

A group holds the memory of a node's ranks and the pages that they bring into the page cache. Both
versions of control groups serve, where this process may create groups.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forebay._core import option_error

__all__ = ["memory_groups"]

_ROOT = Path("/sys/fs/cgroup")
# Processes leave their group a moment after they were reaped [s].
_EMPTY_WITHIN_S = 10.0


@contextmanager
def memory_groups(nodes: int, limit_bytes: int | None) -> Iterator[list[Path]]:
    """Create a group for each node, and remove them at the end; none without a limit.

    Raises
    ------
    OptionError
        If groups cannot be created here; the message says why.
    """
    if limit_bytes is None:
        yield []
        return
    parent, file = _parent()
    _remove_leftovers(parent)
    groups: list[Path] = []
    try:
        for node in range(nodes):
            group = parent / f"forebay-bench-{os.getpid()}-node{node}"
            try:
                group.mkdir()
                groups.append(group)
                (group / file).write_text(str(limit_bytes))
                _limit_swap(group, limit_bytes)
            except OSError as error:
                raise option_error(f"--node-memory: {group}: {error.strerror}") from error
        yield groups
    finally:
        for group in groups:
            _remove(group)


def _parent() -> tuple[Path, str]:
    """Return the control group in which groups can be created, and the name of the limit's file."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            place = _ROOT / "memory" / path.lstrip("/")
            if os.access(place, os.W_OK):
                return place, "memory.limit_in_bytes"
            raise _refused(f"{place} is not writable")
    for _, controllers, path in lines:
        if controllers == "":
            root = next(
                (one for one in (_ROOT, _ROOT / "unified") if (one / "cgroup.controllers").exists()), None
            )
            if root is None:
                break
            own = root / path.lstrip("/")
            for place in (own, *own.parents):
                with suppress(OSError):
                    if "memory" in (place / "cgroup.subtree_control").read_text().split() and os.access(
                        place, os.W_OK
                    ):
                        return place, "memory.max"
                if place == root:
                    break
            raise _refused(f"no control group from {own} up is writable and delegates memory")
    raise _refused("this system has no memory control groups")


def _refused(reason: str) -> Exception:
    return option_error(
        f"--node-memory: {reason}", "run as root, or in a unit with Delegate=memory (systemd-run --user)"
    )


def _limit_swap(group: Path, limit_bytes: int) -> None:
    """Keep a node from swapping beyond its limit; not all systems count swap."""
    for file, limit in (("memory.memsw.limit_in_bytes", limit_bytes), ("memory.swap.max", 0)):
        if (group / file).exists():
            with suppress(OSError):
                (group / file).write_text(str(limit))


def _remove_leftovers(parent: Path) -> None:
    """Remove the groups of benches that were killed; one that is not empty stays."""
    for group in parent.glob("forebay-bench-*-node*"):
        if not Path("/proc", group.name.split("-")[2]).exists():
            with suppress(OSError):
                group.rmdir()


def _remove(group: Path) -> None:
    deadline = time.monotonic() + _EMPTY_WITHIN_S
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
