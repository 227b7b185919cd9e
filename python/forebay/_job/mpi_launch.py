"""Ranks that an MPI launcher started: from its environment, or exchanged between nodes."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from typing import Any

from forebay import _native
from forebay._core import option_error
from forebay._job import mpi as _mpi
from forebay._job.processes import launcher_process, process_namespace, start_of
from forebay._job.rank_info import (
    JOB_VARIABLE,
    NODE_VARIABLE,
    RankInfo,
    check_rank,
    host,
    node_key,
    number,
    own_node,
    single,
)

# Bytes of a node's name or a job's text in an exchange; longer ones are cut, which hostnames (64 at
# most) are not.
_TEXT_BYTES = 128

# What the ranks tell each other: node, job, process namespace, process id and start.
_NODE_RECORD = struct.Struct(f"<{_TEXT_BYTES}s{_TEXT_BYTES}sQqQ")

# Launcher → variables of rank, size, local rank, local size.
_MPI_VARIABLES = {
    "Open MPI": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "MPICH or Intel MPI": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}


def from_mpi(environment: Mapping[str, str], deadline_s: float) -> RankInfo | None:
    """Read the environment of an MPI launcher; ask MPI only if the ranks are on several nodes."""
    mpi = _mpi.imported()
    launcher = next((key for key, names in _MPI_VARIABLES.items() if set(names) <= environment.keys()), None)
    if launcher is None:
        if mpi is None or mpi.COMM_WORLD.size == 1:
            return None
        return exchange_nodes(mpi.COMM_WORLD, own_node(environment), deadline_s, "MPI.COMM_WORLD")
    names = _MPI_VARIABLES[launcher]
    where = f"the environment of {launcher}'s launcher"
    rank, size, local_rank, local_size = (number(environment, name) for name in names)
    check_rank(where, names[0], rank, names[1], size)
    check_rank(where, names[2], local_rank, names[3], local_size)
    if mpi is not None:
        _check_library(mpi, launcher, size)
    if size == 1:
        return single(where)
    if local_size == size and NODE_VARIABLE not in environment:
        # On one node the ranks are all there are. Open MPI's local ranks may be in another order:
        # where it maps by core with more ranks than cores, rank 1 of 4 has local rank 2.
        job = (
            environment.get(JOB_VARIABLE)
            or environment.get("PMIX_NAMESPACE")
            or f"launcher-{launcher_process()}"
        )
        return RankInfo(
            rank=rank,
            size=size,
            local_ranks=tuple(range(size)),
            node=host(),
            job=job,
            source=where,
            launcher=names[0],
        )
    mpi = mpi or _mpi.load(f"{size} MPI ranks on several nodes", deadline_s, (names[0], rank))
    _check_library(mpi, launcher, size)
    return exchange_nodes(mpi.COMM_WORLD, own_node(environment), deadline_s, where)


def from_mpi_library(deadline_s: float) -> RankInfo:
    """Ask MPI itself, for ``world="mpi"`` without a launcher that the environment shows."""
    mpi = _mpi.load('world="mpi"', deadline_s)
    if mpi.COMM_WORLD.size == 1:
        raise option_error('world="mpi": no MPI launcher started this process', _mpi.INSTALL_HINT)
    return exchange_nodes(mpi.COMM_WORLD, own_node(os.environ), deadline_s, "MPI.COMM_WORLD")


def _check_library(mpi: Any, launcher: str, size: int) -> None:
    """Compare launcher and library.

    Under the launcher of another MPI, each process is a world of one rank.
    """
    if mpi.COMM_WORLD.size != size:
        library = re.split(r"[,\n\0]", mpi.Get_library_version())[0].strip()
        raise option_error(
            f"the launcher of {launcher} started {size} ranks, the MPI library that mpi4py loaded ({library}) "
            f"says {mpi.COMM_WORLD.size}",
            "start the ranks with the launcher of the same MPI, for example the mpiexec beside this Python",
        )


def exchange_nodes(comm: Any, node: str, deadline_s: float, source: str, job: str | None = None) -> RankInfo:
    """Send each rank of ``comm`` the node of this one, and take rank 0's random text as the job.

    Collective over ``comm``.

    MPI's own grouping by shared memory knows neither ``node=`` nor ``FOREBAY_NODE``, and has no
    nonblocking form.
    """
    if not hasattr(comm, "Iallgather"):
        raise option_error(f"World(comm=): expected an mpi4py communicator, found {type(comm).__name__}")
    launcher = _launcher_of(comm)
    siblings = None if launcher is None else _native.Siblings(launcher, comm.rank)
    channel = _mpi.MpiChannel.of(comm, deadline_s, siblings)
    key = node_key(node).encode()[:_TEXT_BYTES]
    token = (job or f"mpi-{os.urandom(16).hex()}").encode()[:_TEXT_BYTES]
    own = _NODE_RECORD.pack(key, token, process_namespace(), os.getpid(), start_of("self"))
    everyone = [
        _NODE_RECORD.unpack(other) for other in channel.gather(own, "meeting the other ranks", deadline_s)
    ]
    mine = everyone[channel.rank]
    local_ranks = tuple(rank for rank, other in enumerate(everyone) if other[0] == mine[0])
    if mine[2]:
        # Process ids mean the same to those of one namespace.
        seen = {
            rank: everyone[rank][3:]
            for rank in local_ranks
            if everyone[rank][2] == mine[2] and rank != channel.rank
        }
        channel.watch(seen)
    return RankInfo(
        rank=channel.rank,
        size=channel.size,
        local_ranks=local_ranks,
        node=node,
        job=everyone[0][1].rstrip(b"\0").decode(errors="replace"),
        channel=channel,
        source=source,
        launcher=launcher,
    )


def _launcher_of(comm: Any) -> str | None:
    """Return the launcher's variable of this process's rank, if that is the rank in ``comm``."""
    mpi = _mpi.imported()
    if mpi is None or comm != mpi.COMM_WORLD:
        return None
    names = [*((one[0], one[1]) for one in _MPI_VARIABLES.values()), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")]
    own = (str(comm.rank), str(comm.size))
    return next((rank for rank, size in names if (os.environ.get(rank), os.environ.get(size)) == own), None)
