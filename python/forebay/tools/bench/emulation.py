"""How the nodes of a bench are emulated: as namespaces where that is possible, else by the environment of the ranks.

As namespaces each node has a host name, a network, processes and shared memory of its own
(`forebay.tools.cluster`); ranks of two nodes share nothing but files and the page cache of what is
not on a mount of the emulator. By the environment, the ranks of all nodes are processes of this
machine that are told which node they are on: the engine keeps them apart all the same, MPI and
other programs do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.tools.bench.settings import Settings
from forebay.tools.cluster import Cluster, ClusterError
from forebay.tools.ranks import launch

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
        """Give the object that a result carries."""
        return {"by": self.by, "reason": self.reason}


@contextmanager
def emulate(
    settings: Settings, mounts: Sequence[Sequence[Path]], time_scale: float = 1.0
) -> Iterator[Emulation]:
    """Bring the nodes up, and take them away at the end.

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
