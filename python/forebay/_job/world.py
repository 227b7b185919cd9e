"""World: the rank of this process, the ranks of its node, and the job they belong to.

:func:`identify` takes the first of these sources that applies: explicit arguments, an initialised
torch.distributed (only where torch is imported already), torchrun's environment, an MPI launcher's
environment, a SLURM step's environment, else a single process. It initialises MPI only where the
environment does not suffice: not on one node, and not under torchrun or SLURM.

The facts and their sources:

- rank, size, local rank: the environment of the launcher, as each ``from_*`` function describes.
- local ranks, that is the global ranks of this node by local rank: with a communicator, all ranks
  exchange their nodes; torchrun numbers nodes in blocks; SLURM states the ranks (``SLURM_GTIDS``)
  or their distribution, and the own rank is checked against either; an explicit :class:`World`
  without ``local_ranks`` is assumed to be in blocks.
- job, a string that only the ranks of the job share: Open MPI's PMIx namespace, SLURM's job and
  step, torchrun's run id and restart count, else the launcher process that the ranks descend from,
  else a random string broadcast through MPI.
- address of rank 0, where nodes open a channel without MPI (`forebay._job.rank0`): torchrun's
  ``MASTER_ADDR``, the first node of a SLURM step.
- node: the host, or ``FOREBAY_NODE`` where one host emulates several nodes.

This module trusts the launcher; the ranks of a node compare these facts when they meet.
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
from forebay._warn import warn

__all__ = ["RankInfo", "World", "identify"]

# Variables of other launchers → the least value that shows several processes: a number of them, or
# a rank that is not the first. PMI and PMIx, jsrun, Flux, MVAPICH2, PALS.
_OTHER_LAUNCHERS = {
    "PMI_SIZE": 2,
    "JSM_NAMESPACE_SIZE": 2,
    "FLUX_JOB_SIZE": 2,
    "MV2_COMM_WORLD_SIZE": 2,
    "PMI_RANK": 1,
    "PMIX_RANK": 1,
    "PALS_RANKID": 1,
}


def identify(world: str | World, deadline_s: float, environment: Mapping[str, str] | None = None) -> RankInfo:
    """Return the rank of this process and the facts of its job.

    Collective over the job where a communicator is needed or was given.

    Raises
    ------
    OptionError
        If the requested source does not exist, a source contradicts itself, or this process is a
        worker of a torch DataLoader.
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
            or _alone(environment)
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


def _alone(environment: Mapping[str, str]) -> RankInfo:
    """Return a single process; warn if it looks like one of several."""
    for name, least in _OTHER_LAUNCHERS.items():
        value = environment.get(name, "")
        if value.isascii() and value.isdigit() and int(value) >= least:
            warn(
                f"{name}={value}: a launcher that is not known started several processes; each of them is alone here "
                'and delivers the whole dataset (world="mpi" asks the MPI library for the ranks, '
                'forebay.World(...) states them, world="single" means this)'
            )
            break
    return single("no launcher found")


def _asked(found: RankInfo | None, world: str, needed: str) -> RankInfo:
    if found is None:
        raise option_error(
            f'world="{world}": the environment does not hold {needed}', 'world="auto" finds out by itself'
        )
    return found
