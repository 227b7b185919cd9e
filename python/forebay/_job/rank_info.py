"""The facts of a rank and its job, and the checks that all their sources share."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forebay._core import option_error
from forebay._job.channel import Channel

NODE_VARIABLE = "FOREBAY_NODE"
JOB_VARIABLE = "FOREBAY_JOB"

# Ranks of a job; the engine counts them in 32 bits.
_MAX_RANKS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """The facts of a rank and its job that the engine needs, and their source."""

    rank: int
    """Rank of this process in the job, counted from 0."""
    size: int
    """Ranks of the job."""
    local_ranks: tuple[int, ...]
    """Ranks of this node, in ascending order."""
    node: str
    """Name of the node: what its ranks have in common."""
    job: str
    """Name of the job: what all its ranks have in common."""
    channel: Channel | None = field(default=None, repr=False)
    """The channel of the job over MPI."""
    source: str
    """Where these facts come from, for example `torchrun`."""
    launcher: str | None = None
    """Environment variable with the rank; empty if one process started all ranks of the node."""
    address: str | None = None
    """Host of rank 0 for a channel over TCP between nodes; empty if only torch knows it."""

    @property
    def local_rank(self) -> int:
        """Rank of this process among those of its node, counted from 0."""
        return self.local_ranks.index(self.rank)


def alone(rank_info: RankInfo) -> RankInfo:
    """Return a rank alone in its job with a unique job, so that its loaders never meet."""
    if rank_info.size > 1:
        return rank_info
    return RankInfo(
        rank=0,
        size=1,
        local_ranks=(0,),
        node=rank_info.node,
        job=own_job(),
        source=rank_info.source,
    )


def single(source: str) -> RankInfo:
    return RankInfo(rank=0, size=1, local_ranks=(0,), node=host(), job=own_job(), source=source)


def own_job() -> str:
    return f"single-{os.getpid()}-{os.urandom(8).hex()}"


def host() -> str:
    return socket.gethostname()


def check_rank(where: str, rank_name: str, rank: object, size_name: str, size: object) -> None:
    for name, value in ((rank_name, rank), (size_name, size)):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise option_error(f"{where}: {name}: expected an integer, found {value!r}")
    if size < 1:  # type: ignore[operator]
        raise option_error(f"{where}: {size_name}: expected at least 1, found {size}")
    if size > _MAX_RANKS:  # type: ignore[operator]
        raise option_error(f"{where}: {size_name}: expected at most {_MAX_RANKS}, found {size}")
    if not 0 <= rank < size:  # type: ignore[operator]
        raise option_error(f"{where}: {rank_name} {rank} is not below {size_name} {size}; ranks count from 0")


def block(where: str, rank: int, size: int, local_rank: int, local_size: int) -> tuple[int, ...]:
    first = rank - local_rank
    if first < 0 or first + local_size > size:
        raise option_error(
            f"{where}: rank {rank} of {size} cannot have local rank {local_rank} of {local_size} "
            "on a node of consecutive ranks",
            "pass forebay.World(..., local_ranks=) with the global ranks of the node",
        )
    return tuple(range(first, first + local_size))


def number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name)
    try:
        return int(text or "")
    except ValueError:
        raise option_error(f"{name}: expected an integer, found {text!r}") from None


def own_node(environment: Mapping[str, str]) -> str:
    return environment.get(NODE_VARIABLE) or host()


def node_key(node: str) -> str:
    """Return a node's name with the kernel's boot id, for machines that share a name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{boot} {node}"
