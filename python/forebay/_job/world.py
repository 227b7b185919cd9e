"""World: who am I, who is beside me on the node, which processes are one job.

Found out in this order: explicit arguments, an initialised torch.distributed (looked for only if
torch is imported), torchrun's environment, an MPI launcher's environment, a SLURM step's
environment, else a single process. No MPI is initialised where the environment says it all: on one
node, and wherever torchrun or SLURM laid the ranks out.

What is needed, and where it comes from:

- rank, size, local rank: the environment of the launcher, read as each ``from_*`` function says.
- local ranks, that is the global ranks of this node by local rank: with a communicator every rank
  tells the others which node it is on; torchrun numbers nodes in blocks; SLURM states them
  (``SLURM_GTIDS``), or its distribution is computed, and either is checked against the own rank; an
  explicit :class:`World` without ``local_ranks`` is taken to be in blocks.
- job, a text that all ranks of the job and no others share: Open MPI's PMIx namespace, SLURM's job
  and step, torchrun's run id and restart count, else the launcher process that the ranks descend
  from, else a random text broadcast through MPI.
- address of rank 0, where nodes open a channel without MPI (`forebay._job.rank0`): torchrun's
  ``MASTER_ADDR``, the first node of a SLURM step.
- node: the host, or ``FOREBAY_NODE`` where several nodes are emulated on one.

It does not judge whether the launcher tells the truth; the ranks of a node compare what they
believe when they meet.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from forebay._core import option_error
from forebay._job.explicit import World, from_world
from forebay._job.mpi_launch import from_mpi, from_mpi_library
from forebay._job.rank_info import RankInfo, alone, single
from forebay._job.slurm import from_slurm
from forebay._job.torchrun import from_torch, from_torchrun

__all__ = ["RankInfo", "World", "identify"]


def identify(world: str | World, deadline_s: float, environment: Mapping[str, str] | None = None) -> RankInfo:
    """Find out who this process is.

    Collective over the job where a communicator is needed or was given.

    Raises
    ------
    OptionError
        If what was asked for is not there, what was found contradicts itself, or this is a worker
        of a torch DataLoader.
    RendezvousError
        If other ranks do not take part within ``deadline_s`` seconds.
    """
    environment = os.environ if environment is None else environment
    if isinstance(world, World):
        return from_world(world, deadline_s, environment)
    _refuse_in_worker()
    if world == "single":
        return single('world="single"')
    if world == "auto":
        found = (
            from_torch()
            or from_torchrun(environment)
            or from_mpi(environment, deadline_s)
            or from_slurm(environment)
            or single("no launcher found")
        )
    elif world == "torchrun":
        found = _asked(
            from_torch() or from_torchrun(environment),
            world,
            "RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE",
        )
    elif world == "slurm":
        found = _asked(
            from_slurm(environment), world, "SLURM_PROCID and SLURM_STEP_ID (start the script with srun)"
        )
    else:
        found = from_mpi(environment, deadline_s) or from_mpi_library(deadline_s)
    return alone(found)


def _refuse_in_worker() -> None:
    """Reject a worker process of a torch DataLoader: each worker would deliver every sample."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    if info is not None:
        raise option_error(
            f"a loader cannot be made in a worker process of a torch DataLoader (worker {info.id} of {info.num_workers}): "
            "each worker would deliver the whole epoch",
            "num_workers=0: the loader reads in threads of its own; "
            "or give each worker a place, world=forebay.World(rank=..., size=..., job=...)",
        )


def _asked(found: RankInfo | None, world: str, needed: str) -> RankInfo:
    if found is None:
        raise option_error(
            f'world="{world}": the environment does not hold {needed}', 'world="auto" finds out by itself'
        )
    return found
