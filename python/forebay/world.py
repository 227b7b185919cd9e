"""World: who am I, who is beside me on the node, which processes are one job.

Found out in this order: explicit arguments, an initialised torch.distributed (looked for only if torch is imported), torchrun's
environment, an MPI launcher's environment, a SLURM step's environment, else a single process. No MPI is initialised where
the environment says it all: on one node, and wherever torchrun or SLURM laid the ranks out.

What is needed, and where it comes from:

- rank, size, local rank: the environment of the launcher, read as in the table of each ``_from_*`` function.
- local ranks, that is the global ranks of this node by local rank: with a communicator every rank tells the others
  which node it is on; torchrun numbers nodes in blocks; SLURM's distribution is computed and checked against the own
  rank; an explicit :class:`World` without ``local_ranks`` is taken to be in blocks.
- job, a text that all ranks of the job and no others share: Open MPI's PMIx namespace, SLURM's job and step, torchrun's
  run id and restart count, else the launcher process that the ranks descend from, else a random text broadcast through MPI.
- node: the host, or ``FOREBAY_NODE`` where several nodes are emulated on one.

It does not judge whether the launcher tells the truth; the ranks of a node compare what they believe when they meet.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay import _mpi, _native
from forebay._core import option_error
from forebay._waiting import start_of

__all__ = ["Identity", "World", "identify"]

NODE_VARIABLE = "FOREBAY_NODE"
JOB_VARIABLE = "FOREBAY_JOB"

# Ranks of a job; the engine counts them in 32 bits.
_MOST_RANKS = 2**31 - 1

# Bytes of a node's name or a job's text in an exchange; longer ones are cut, which hostnames (64 at most) are not.
_TEXT_BYTES = 128

# What the ranks tell each other: node, job, process namespace, process id and start.
_CARD = struct.Struct(f"<{_TEXT_BYTES}s{_TEXT_BYTES}sQqQ")

# Processes that start the ranks of a node; the name as in /proc/PID/comm, which holds 15 bytes.
_LAUNCHERS = (
    "hydra_pmi_proxy",
    "hydra_bstrap_pr",
    "prterun",
    "prted",
    "orted",
    "mpiexec",
    "mpirun",
    "mpiexec.hydra",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The place of this process in its job, stated by hand.

    Parameters
    ----------
    rank, size : int
        This process among all of the job, counted from 0, and their number.
    local_rank, local_size : int, optional
        The same among those of this node. By default all ranks are on this node.
    node : str or int, optional
        What tells this node from the others, the same on all its ranks. By default the host.
    comm : mpi4py.MPI.Comm, optional
        Communicator of all ranks. With it, making a loader is collective over the job, and who is on which node is exchanged.
        Without it a loader never waits for other nodes.
    job : str, optional
        A text that the ranks of this job share with no other job of the user on the node. By default ``FOREBAY_JOB``, else
        the process that started this one: right for ``multiprocessing``, wrong for ranks that were started one by one.
    local_ranks : sequence of int, optional
        The global ranks on this node, by local rank. By default a block of consecutive ranks.

    Raises
    ------
    OptionError
        If the numbers contradict each other, or the communicator.
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
        _check_rank("World", "rank", self.rank, "size", self.size)
        if (self.local_rank is None) != (self.local_size is None):
            raise option_error("World: give local_rank and local_size together, or neither")
        if self.local_rank is not None and self.local_size is not None:
            _check_rank("World", "local_rank", self.local_rank, "local_size", self.local_size)
            if self.local_size > self.size:
                raise option_error(f"World: local_size {self.local_size} is larger than size {self.size}")
        if self.comm is not None and (self.comm.rank, self.comm.size) != (self.rank, self.size):
            raise option_error(
                f"World: rank {self.rank} of {self.size} was given, "
                f"the communicator says rank {self.comm.rank} of {self.comm.size}"
            )
        if self.local_ranks is not None:
            object.__setattr__(self, "local_ranks", tuple(self.local_ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Everything the engine needs to know about the job, and how it was found out."""

    rank: int
    size: int
    local_ranks: tuple[int, ...]
    node: str
    job: str
    comm: _mpi.Channel | None = field(default=None, repr=False)
    source: str
    launcher: str | None = None
    """Variable of the environment that holds the rank; empty where all ranks of the node are children of one process."""

    @property
    def local_rank(self) -> int:
        """This process among those of its node."""
        return self.local_ranks.index(self.rank)


def identify(world: str | World, deadline_s: float, environment: Mapping[str, str] | None = None) -> Identity:
    """Find out who this process is.

    Collective over the job where a communicator is needed or was given.

    Raises
    ------
    OptionError
        If what was asked for is not there, what was found contradicts itself, or this is a worker of a torch DataLoader.
    PeerLostError
        If other ranks do not take part within ``deadline_s`` seconds.
    """
    environment = os.environ if environment is None else environment
    if isinstance(world, World):
        return _from_world(world, deadline_s, environment)
    _refuse_in_worker()
    if world == "single":
        return _single('world="single"')
    if world == "auto":
        found = (
            _from_torch()
            or _from_torchrun(environment)
            or _from_mpi(environment, deadline_s)
            or _from_slurm(environment)
            or _single("no launcher found")
        )
    elif world == "torchrun":
        found = _asked(
            _from_torch() or _from_torchrun(environment),
            world,
            "RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE",
        )
    elif world == "slurm":
        found = _asked(
            _from_slurm(environment), world, "SLURM_PROCID and SLURM_STEP_ID (start the script with srun)"
        )
    else:
        found = _from_mpi(environment, deadline_s) or _from_mpi_library(deadline_s)
    return _alone(found)


def _refuse_in_worker() -> None:
    """Refuse a worker process of a torch DataLoader: each of them would deliver every sample of this rank."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    if info is not None:
        raise option_error(
            f"a loader cannot be made in a worker process of a torch DataLoader (worker {info.id} of {info.num_workers}): "
            "each worker would deliver the whole epoch",
            "num_workers=0: the loader reads in threads of its own; "
            "or give each worker a place, world=forebay.World(rank=..., size=..., job=...)",
        )


def _asked(found: Identity | None, world: str, needed: str) -> Identity:
    if found is None:
        raise option_error(
            f'world="{world}": the environment does not hold {needed}', 'world="auto" finds out by itself'
        )
    return found


def _alone(identity: Identity) -> Identity:
    """Give a job of one rank a job of its own, so that two loaders of one process never meet."""
    if identity.size > 1:
        return identity
    return Identity(
        rank=0,
        size=1,
        local_ranks=(0,),
        node=identity.node,
        job=_own_job(),
        comm=None,
        source=identity.source,
    )


def _single(source: str) -> Identity:
    return Identity(rank=0, size=1, local_ranks=(0,), node=_host(), job=_own_job(), source=source)


def _own_job() -> str:
    return f"single-{os.getpid()}-{secrets.token_hex(8)}"


def _host() -> str:
    return socket.gethostname()


def _check_rank(where: str, rank_name: str, rank: object, size_name: str, size: object) -> None:
    for name, value in ((rank_name, rank), (size_name, size)):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise option_error(f"{where}: {name}: expected an integer, found {value!r}")
    if size < 1:  # type: ignore[operator]
        raise option_error(f"{where}: {size_name}: expected at least 1, found {size}")
    if size > _MOST_RANKS:  # type: ignore[operator]
        raise option_error(f"{where}: {size_name}: expected at most {_MOST_RANKS}, found {size}")
    if not 0 <= rank < size:  # type: ignore[operator]
        raise option_error(f"{where}: {rank_name} {rank} is not below {size_name} {size}; ranks count from 0")


# --- explicit ---------------------------------------------------------------------------------------------------------


def _from_world(world: World, deadline_s: float, environment: Mapping[str, str]) -> Identity:
    node = _host() if world.node is None else str(world.node)
    if world.comm is not None:
        found = _exchange(world.comm, node, deadline_s, "forebay.World with a communicator", world.job)
        with _mpi.told_to_all(found.comm):
            if world.local_size is not None and world.local_size != len(found.local_ranks):
                raise option_error(
                    f"World: local_size {world.local_size} was given, "
                    f"{len(found.local_ranks)} ranks of the communicator are on node {node!r}",
                    "give node= the same value on the ranks of a node and different ones on different nodes",
                )
        return _alone(found)
    if world.local_rank is None or world.local_size is None:
        local_rank, local_size = world.rank, world.size
    else:
        local_rank, local_size = world.local_rank, world.local_size
    local_ranks = world.local_ranks or _block("World", world.rank, world.size, local_rank, local_size)
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
    identity = Identity(
        rank=world.rank,
        size=world.size,
        local_ranks=local_ranks,
        node=node,
        job=job or f"parent-{_process(os.getppid())}",
        source="forebay.World",
        launcher=None if job else "",
    )
    return _alone(identity)


def _block(where: str, rank: int, size: int, local_rank: int, local_size: int) -> tuple[int, ...]:
    first = rank - local_rank
    if first < 0 or first + local_size > size:
        raise option_error(
            f"{where}: rank {rank} of {size} cannot have local rank {local_rank} of {local_size} "
            "on a node of consecutive ranks",
            "pass forebay.World(..., local_ranks=) with the global ranks of the node",
        )
    return tuple(range(first, first + local_size))


# --- torch ------------------------------------------------------------------------------------------------------------


def _from_torch() -> Identity | None:
    """Read an initialised torch.distributed; torch is not imported for it."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    rank, size = distributed.get_rank(), distributed.get_world_size()
    found = _from_torchrun(os.environ)
    if found is not None and (found.rank, found.size) == (rank, size):
        return found
    everyone: list[Any] = [None] * size
    # Collective over the default group; it ends with torch's own timeout.
    distributed.all_gather_object(everyone, (_node_key(_host()), secrets.token_hex(16)))
    local_ranks = tuple(other for other in range(size) if everyone[other][0] == everyone[rank][0])
    return Identity(
        rank=rank,
        size=size,
        local_ranks=local_ranks,
        node=_host(),
        job=f"torch-{everyone[0][1]}",
        source="torch.distributed",
    )


def _from_torchrun(environment: Mapping[str, str]) -> Identity | None:
    """Read RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE; torchrun numbers its nodes in blocks."""
    if not {"RANK", "WORLD_SIZE"} <= environment.keys():
        return None
    where = "torchrun's environment"
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    _check_rank(where, "RANK", rank, "WORLD_SIZE", size)
    if size == 1:
        return _single(where)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        if name not in environment:
            raise option_error(
                f"{where}: RANK={rank} and WORLD_SIZE={size} are set, {name} is not",
                f"set {name}, or pass world=forebay.World(...)",
            )
    local_rank, local_size = _number(environment, "LOCAL_RANK"), _number(environment, "LOCAL_WORLD_SIZE")
    _check_rank(where, "LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_size)
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    parts = [environment[name] for name in names if name in environment]
    job = environment.get(JOB_VARIABLE) or (
        f"torchrun-{'-'.join(parts)}" if "MASTER_PORT" in environment else f"parent-{_process(os.getppid())}"
    )
    return Identity(
        rank=rank,
        size=size,
        local_ranks=_block(where, rank, size, local_rank, local_size),
        node=_host(),
        job=job,
        source=where,
        launcher="RANK",
    )


# --- MPI --------------------------------------------------------------------------------------------------------------

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


def _from_mpi(environment: Mapping[str, str], deadline_s: float) -> Identity | None:
    """Read the environment of an MPI launcher; MPI itself is asked only where the ranks are on several nodes."""
    mpi = _mpi.imported()
    launcher = next((key for key, names in _MPI_VARIABLES.items() if set(names) <= environment.keys()), None)
    if launcher is None:
        if mpi is None or mpi.COMM_WORLD.size == 1:
            return None
        return _exchange(mpi.COMM_WORLD, _own_node(environment), deadline_s, "MPI.COMM_WORLD")
    names = _MPI_VARIABLES[launcher]
    where = f"the environment of {launcher}'s launcher"
    rank, size, local_rank, local_size = (_number(environment, name) for name in names)
    _check_rank(where, names[0], rank, names[1], size)
    _check_rank(where, names[2], local_rank, names[3], local_size)
    if mpi is not None:
        _check_library(mpi, launcher, size)
    if size == 1:
        return _single(where)
    if local_size == size and NODE_VARIABLE not in environment:
        # Open MPI gives every rank of a node its own local rank; on one node the ranks are all there are.
        job = (
            environment.get(JOB_VARIABLE)
            or environment.get("PMIX_NAMESPACE")
            or f"launcher-{_launcher_process()}"
        )
        return Identity(
            rank=rank,
            size=size,
            local_ranks=_by_local_rank(rank, size, local_rank),
            node=_host(),
            job=job,
            source=where,
            launcher=names[0],
        )
    mpi = mpi or _mpi.load(f"{size} MPI ranks on several nodes", deadline_s)
    _check_library(mpi, launcher, size)
    return _exchange(mpi.COMM_WORLD, _own_node(environment), deadline_s, where)


def _by_local_rank(rank: int, size: int, local_rank: int) -> tuple[int, ...]:
    """Return all ranks of a one-node job; launchers number them alike globally and locally, which is checked."""
    if rank != local_rank:
        raise option_error(
            f"an MPI launcher says rank {rank} of {size} and local rank {local_rank}, with all ranks on one node",
            "pass world=forebay.World(..., local_ranks=)",
        )
    return tuple(range(size))


def _from_mpi_library(deadline_s: float) -> Identity:
    """Ask MPI itself, where ``world="mpi"`` was asked for and no launcher is known by its environment."""
    mpi = _mpi.load('world="mpi"', deadline_s)
    if mpi.COMM_WORLD.size == 1:
        raise option_error('world="mpi": no MPI launcher started this process', _mpi.INSTALL_HINT)
    return _exchange(mpi.COMM_WORLD, _own_node(os.environ), deadline_s, "MPI.COMM_WORLD")


def _check_library(mpi: Any, launcher: str, size: int) -> None:
    """Compare launcher and library: a library under a foreign launcher runs as many worlds of one rank."""
    if mpi.COMM_WORLD.size != size:
        library = re.split(r"[,\n\0]", mpi.Get_library_version())[0].strip()
        raise option_error(
            f"the launcher of {launcher} started {size} ranks, the MPI library that mpi4py loaded ({library}) "
            f"says {mpi.COMM_WORLD.size}",
            "start the ranks with the launcher of the same MPI, for example the mpiexec beside this Python",
        )


def _exchange(comm: Any, node: str, deadline_s: float, source: str, job: str | None = None) -> Identity:
    """Tell every rank of ``comm`` which node this one is on, and take rank 0's random text as the job (collective).

    MPI's own grouping by shared memory knows neither ``node=`` nor ``FOREBAY_NODE``, and has no nonblocking form.
    """
    if not hasattr(comm, "Iallgather"):
        raise option_error(f"World(comm=): expected an mpi4py communicator, found {type(comm).__name__}")
    launcher = _launcher_of(comm)
    siblings = None if launcher is None else _native.Siblings(launcher, comm.rank)
    channel = _mpi.Channel.of(comm, deadline_s, siblings)
    key = _node_key(node).encode()[:_TEXT_BYTES]
    token = (job or f"mpi-{secrets.token_hex(16)}").encode()[:_TEXT_BYTES]
    own = _CARD.pack(key, token, _process_namespace(), os.getpid(), start_of("self"))
    everyone = [_CARD.unpack(other) for other in channel.gather(own, "meeting the other ranks", deadline_s)]
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
    return Identity(
        rank=channel.rank,
        size=channel.size,
        local_ranks=local_ranks,
        node=node,
        job=everyone[0][1].rstrip(b"\0").decode(errors="replace"),
        comm=channel,
        source=source,
        launcher=launcher,
    )


def _launcher_of(comm: Any) -> str | None:
    """Return the variable in which the launcher gave this process its rank, where its numbers are those of ``comm``."""
    mpi = _mpi.imported()
    if mpi is None or comm != mpi.COMM_WORLD:
        return None
    names = [*((one[0], one[1]) for one in _MPI_VARIABLES.values()), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")]
    own = (str(comm.rank), str(comm.size))
    return next((rank for rank, size in names if (os.environ.get(rank), os.environ.get(size)) == own), None)


def _process_namespace() -> int:
    """Return what tells process namespaces of a machine apart; 0 if that cannot be found out."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _own_node(environment: Mapping[str, str]) -> str:
    return environment.get(NODE_VARIABLE) or _host()


def _node_key(node: str) -> str:
    """Tell machines apart that share a name; the boot id is one per running kernel."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{boot} {node}"


# --- SLURM ------------------------------------------------------------------------------------------------------------

_REPEATED = re.compile(r"^(\d+)(?:\(x(\d+)\))?$")
_MOST_NODES = 1 << 20


def _from_slurm(environment: Mapping[str, str]) -> Identity | None:
    """Read the environment of a SLURM step; outside a step (a batch script, a login shell) there are no ranks."""
    if not {"SLURM_PROCID", "SLURM_STEP_ID"} <= environment.keys():
        return None
    where = "SLURM's environment"
    size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    rank, size = _number(environment, "SLURM_PROCID"), _number(environment, size_name)
    _check_rank(where, "SLURM_PROCID", rank, size_name, size)
    if size == 1:
        return _single(where)
    node, local_rank = _number(environment, "SLURM_NODEID"), _number(environment, "SLURM_LOCALID")
    tasks = tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if sum(tasks) != size or node >= len(tasks):
        raise option_error(
            f"{where}: SLURM_STEP_TASKS_PER_NODE={environment.get('SLURM_STEP_TASKS_PER_NODE')!r} "
            f"does not hold {size} tasks with node {node}",
            "pass world=forebay.World(...)",
        )
    local_ranks = next(
        (
            layout[node]
            for layout in (block_layout(tasks), cyclic_layout(tasks))
            if _stands(layout, node, local_rank, rank)
        ),
        None,
    )
    if local_ranks is None:
        raise option_error(
            f"{where}: task {rank} at place {local_rank} of node {node} fits neither a block nor a cyclic distribution "
            f"of {tasks}",
            "pass world=forebay.World(..., local_ranks=) with the global ranks of the node",
        )
    cluster = environment.get("SLURM_CLUSTER_NAME", "")
    job = f"slurm-{cluster}-{environment.get('SLURM_JOB_ID', '')}-{environment['SLURM_STEP_ID']}"
    return Identity(
        rank=rank,
        size=size,
        local_ranks=local_ranks,
        node=_host(),
        job=environment.get(JOB_VARIABLE) or job,
        source=where,
        launcher="SLURM_PROCID",
    )


def _stands(layout: list[tuple[int, ...]], node: int, local_rank: int, rank: int) -> bool:
    return local_rank < len(layout[node]) and layout[node][local_rank] == rank


def tasks_per_node(text: str) -> list[int]:
    """Read SLURM's repeated counts: ``"4(x2),3"`` is [4, 4, 3]."""
    tasks: list[int] = []
    for part in filter(None, text.split(",")):
        match = _REPEATED.match(part)
        if match is None:
            raise option_error(f"SLURM_STEP_TASKS_PER_NODE: expected counts such as 4(x2),3; found {text!r}")
        repeated = int(match.group(2) or 1)
        if len(tasks) + repeated > _MOST_NODES:
            raise option_error(
                f"SLURM_STEP_TASKS_PER_NODE: expected at most {_MOST_NODES} nodes; found {text!r}",
                "pass world=forebay.World(...)",
            )
        tasks += [int(match.group(1))] * repeated
    return tasks


def block_layout(tasks: list[int]) -> list[tuple[int, ...]]:
    """Ranks by node when each node is filled before the next."""
    layout, first = [], 0
    for count in tasks:
        layout.append(tuple(range(first, first + count)))
        first += count
    return layout


def cyclic_layout(tasks: list[int]) -> list[tuple[int, ...]]:
    """Ranks by node when one rank goes to each node in turn, as long as it has room."""
    layout: list[list[int]] = [[] for _ in tasks]
    rank = 0
    while rank < sum(tasks):
        for node, count in enumerate(tasks):
            if len(layout[node]) < count:
                layout[node].append(rank)
                rank += 1
    return [tuple(ranks) for ranks in layout]


# --- the environment and the process table ----------------------------------------------------------------------------


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name)
    try:
        return int(text or "")
    except ValueError:
        raise option_error(f"{name}: expected an integer, found {text!r}") from None


def _parent_and_start(pid: int) -> tuple[str, int, str]:
    """Return name, parent and start time of a process; the start time tells two processes of one pid apart."""
    text = Path(f"/proc/{pid}/stat").read_text()
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    return name, int(rest[1]), rest[19]


def _process(pid: int) -> str:
    try:
        return f"{pid}-{_parent_and_start(pid)[2]}"
    except OSError:
        return str(pid)


def _launcher_process() -> str:
    """Return the nearest ancestor that is an MPI launcher, so that a shell between it and a rank does no harm."""
    pid = os.getppid()
    try:
        while pid > 1:
            name, parent, start = _parent_and_start(pid)
            if name in _LAUNCHERS:
                return f"{pid}-{start}"
            pid = parent
    except OSError:
        pass
    return _process(os.getppid())
