"""Ranks that torchrun started, and those of an initialised `torch.distributed`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from forebay._core import option_error
from forebay._job.processes import process_key
from forebay._job.rank_info import (
    JOB_VARIABLE,
    RankInfo,
    block,
    check_rank,
    node_key,
    number,
    own_node,
    single,
)


def from_torch() -> RankInfo | None:
    """Read an initialised torch.distributed; torch is not imported for it."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    rank, size = distributed.get_rank(), distributed.get_world_size()
    found = from_torchrun(os.environ)
    if found is not None and (found.rank, found.size) == (rank, size):
        return found
    node = own_node(os.environ)
    everyone: list[Any] = [None] * size
    # Collective over the default group; it ends with torch's own timeout.
    distributed.all_gather_object(everyone, (node_key(node), os.urandom(16).hex()))
    local_ranks = tuple(other for other in range(size) if everyone[other][0] == everyone[rank][0])
    return RankInfo(
        rank=rank,
        size=size,
        local_ranks=local_ranks,
        node=node,
        job=f"torch-{everyone[0][1]}",
        source="torch.distributed",
        address="",
    )


def from_torchrun(environment: Mapping[str, str]) -> RankInfo | None:
    """Read RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE; torchrun numbers its nodes in blocks."""
    if not {"RANK", "WORLD_SIZE"} <= environment.keys():
        return None
    where = "torchrun's environment"
    rank, size = number(environment, "RANK"), number(environment, "WORLD_SIZE")
    check_rank(where, "RANK", rank, "WORLD_SIZE", size)
    if size == 1:
        return single(where)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        if name not in environment:
            raise option_error(
                f"{where}: RANK={rank} and WORLD_SIZE={size} are set, {name} is not",
                f"set {name}, or pass world=forebay.World(...)",
            )
    local_rank, local_size = number(environment, "LOCAL_RANK"), number(environment, "LOCAL_WORLD_SIZE")
    check_rank(where, "LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_size)
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    parts = [environment[name] for name in names if name in environment]
    job = environment.get(JOB_VARIABLE) or (
        f"torchrun-{'-'.join(parts)}"
        if "MASTER_PORT" in environment
        else f"parent-{process_key(os.getppid())}"
    )
    return RankInfo(
        rank=rank,
        size=size,
        local_ranks=block(where, rank, size, local_rank, local_size),
        node=own_node(environment),
        job=job,
        source=where,
        launcher="RANK",
        address=environment.get("MASTER_ADDR") if "MASTER_PORT" in environment else None,
    )
