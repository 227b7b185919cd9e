"""Emulated nodes of a bench: namespaces where possible, else the environment of the ranks.

As a namespace, each node has its own host name, network, processes and shared memory
(`forebay_lab.cluster`). Ranks of two nodes share only files, and the page cache of files outside
the emulator's mounts. By the environment, the ranks of all nodes are processes of this machine with
the node in a variable: the engine keeps the nodes apart, MPI and other programs do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_lab.bench.settings import Settings
from forebay_lab.cluster import Cluster, ClusterError
from forebay_lab.ranks import launch

__all__ = ["Emulation", "emulate"]


@dataclass(frozen=True, slots=True)
class Emulation:
    """How, and why not otherwise."""

    by: str | None
    """``namespaces``, ``environment``, or None where there is one node."""
    reason: str | None = None
    """Why not by namespaces."""
    cluster: Cluster | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the object that a result holds."""
        return {"by": self.by, "reason": self.reason}


@contextmanager
def emulate(
    settings: Settings, mounts: Sequence[Sequence[Path]], time_scale: float = 1.0
) -> Iterator[Emulation]:
    """Start the nodes, and remove them at the end.

    Parameters
    ----------
    settings
        Of the bench.
    mounts
        Mounts of emulated file systems by node; none without any.
    time_scale
        Real seconds per model second: links are as much slower.

    Raises
    ------
    ClusterError
        If namespaces were asked for, or a rate of their links, and they cannot be had.
    """
    if settings.nodes == 1:
        yield Emulation(None)
        return
    if settings.node_emulation == "environment":
        yield Emulation("environment", "it was asked for")
        return
    link_rate = None if settings.link_rate is None else max(1, round(settings.link_rate / time_scale))
    try:
        with launch.held_interrupts():
            cluster = Cluster(settings.nodes, mounts or None, link_rate=link_rate)
    except ClusterError as error:
        if settings.node_emulation == "namespaces" or settings.link_rate is not None:
            raise
        yield Emulation("environment", str(error))
        return
    try:
        yield Emulation("namespaces", None, cluster)
    finally:
        with launch.held_interrupts():
            cluster.close()
