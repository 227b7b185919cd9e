"""A job that the script describes: `forebay.World`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay._core import option_error
from forebay._job.channel import errors_told
from forebay._job.mpi_launch import exchange_nodes
from forebay._job.processes import process_key
from forebay._job.rank_info import JOB_VARIABLE, RankInfo, alone, block, check_rank, host


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The rank of this process in its job, as the script states it.

    Parameters
    ----------
    rank, size : int
        Rank of this process in the job, counted from 0, and number of ranks.
    local_rank, local_size : int, optional
        Rank on this node, counted from 0, and number of ranks on it. By default all ranks are on
        this node.
    node : str or int, optional
        Identifier of this node, the same on all its ranks. By default the host name.
    comm : mpi4py.MPI.Comm, optional
        Communicator of all ranks. With it, making a loader is collective over the job, and the
        ranks exchange their nodes. Without it, and without ``FOREBAY_JOB_ADDRESS``, a loader never
        waits for other nodes.
    job : str, optional
        Identifier that the ranks of this job share with no other job of the user on the node. By
        default ``FOREBAY_JOB``, else the parent process: correct for ``multiprocessing``, wrong for
        ranks that were started separately.
    local_ranks : sequence of int, optional
        The global ranks on this node, by local rank. By default a block of consecutive ranks.

    Raises
    ------
    OptionError
        If the numbers contradict each other or the communicator.
    """

    rank: int = 0
    size: int = 1
    local_rank: int | None = None
    local_size: int | None = None
    node: str | int | None = None
    comm: Any = field(default=None, repr=False)
    job: str | None = None
    local_ranks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_rank("World", "rank", self.rank, "size", self.size)
        if (self.local_rank is None) != (self.local_size is None):
            raise option_error("World: give local_rank and local_size together, or neither")
        if self.local_rank is not None and self.local_size is not None:
            check_rank("World", "local_rank", self.local_rank, "local_size", self.local_size)
            if self.local_size > self.size:
                raise option_error(f"World: local_size {self.local_size} is larger than size {self.size}")
        if self.comm is not None and (self.comm.rank, self.comm.size) != (self.rank, self.size):
            raise option_error(
                f"World: rank {self.rank} of {self.size} was given, "
                f"the communicator says rank {self.comm.rank} of {self.comm.size}"
            )
        if self.local_ranks is not None:
            object.__setattr__(self, "local_ranks", tuple(self.local_ranks))


def from_world(world: World, deadline_s: float, environment: Mapping[str, str]) -> RankInfo:
    node = host() if world.node is None else str(world.node)
    if world.comm is not None:
        found = exchange_nodes(world.comm, node, deadline_s, "forebay.World with a communicator", world.job)
        with errors_told(found.channel):
            if world.local_size is not None and world.local_size != len(found.local_ranks):
                raise option_error(
                    f"World: local_size {world.local_size} was given, "
                    f"{len(found.local_ranks)} ranks of the communicator are on node {node!r}",
                    "give node= the same value on the ranks of a node and different ones on different nodes",
                )
        return alone(found)
    if world.local_rank is None or world.local_size is None:
        local_rank, local_size = world.rank, world.size
    else:
        local_rank, local_size = world.local_rank, world.local_size
    local_ranks = world.local_ranks or block("World", world.rank, world.size, local_rank, local_size)
    if (
        len(local_ranks) != local_size
        or local_ranks[local_rank] != world.rank
        or len(set(local_ranks)) != local_size
    ):
        raise option_error(
            f"World: local_ranks {local_ranks} does not name {local_size} different ranks with rank {world.rank} "
            f"at local_rank {local_rank}"
        )
    job = world.job or environment.get(JOB_VARIABLE)
    rank_info = RankInfo(
        rank=world.rank,
        size=world.size,
        local_ranks=local_ranks,
        node=node,
        job=job or f"parent-{process_key(os.getppid())}",
        source="forebay.World",
        launcher=None if job else "",
    )
    return alone(rank_info)
