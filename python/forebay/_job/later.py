"""The check that a framework has not named other ranks since the loader was made.

A process group of torch, the processes of JAX or the cluster of TensorFlow may come into being
after the loader. If the loader found no ranks by then, each rank would deliver all samples. The
loader therefore compares its ranks with them at the start of each epoch, unless the script has
stated the ranks. Frameworks are looked up in ``sys.modules`` and never imported.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from forebay._core import option_error
from forebay._job.rank_info import RankInfo

__all__ = ["check_ranks"]


class _Stated(NamedTuple):
    """The rank of this process as a framework has it."""

    rank: int
    size: int
    where: str
    hint: str


def check_ranks(name: str, found: RankInfo, environment: Mapping[str, str] | None = None) -> None:
    """Compare the ranks of a loader with those of the frameworks of this process.

    Parameters
    ----------
    name : str
        Name of the loader, for errors.
    found : RankInfo
        The ranks of the loader.
    environment : mapping, optional
        The environment. Default: that of the process.

    Raises
    ------
    OptionError
        If a framework has other ranks.
    """
    stated = _torch() or _jax() or _tensorflow(os.environ if environment is None else environment)
    if stated is None or (found.rank, found.size) == (stated.rank, stated.size):
        return
    share = (
        "each process would deliver all samples"
        if found.size == 1
        else "the processes would deliver other parts than those they train on"
    )
    raise option_error(
        f"loader {name!r}: made for rank {found.rank} of {found.size} ({found.source}), "
        f"but {stated.where} now has rank {stated.rank} of {stated.size}: {share}",
        f'{stated.hint}; world="single" means all samples on each rank',
    )


def _torch() -> _Stated | None:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return _Stated(
        distributed.get_rank(),
        distributed.get_world_size(),
        "torch.distributed",
        "make the loader after torch.distributed.init_process_group; for a trainer that calls it, "
        "in train_dataloader() or get_train_dataloader(); world=forebay.World(...) states the ranks",
    )


def _jax() -> _Stated | None:
    jax = sys.modules.get("jax")
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    # Only then: asking for the processes initialises the devices.
    if jax is None or is_initialized is None or not is_initialized():
        return None
    size = jax.process_count()
    # Processes that know each other through MPI alone are not counted by JAX.
    if size == 1:
        return None
    return _Stated(
        jax.process_index(), size, "jax.distributed", "make the loader with world=forebay.jax.world()"
    )


def _tensorflow(environment: Mapping[str, str]) -> _Stated | None:
    """Read the workers of TF_CONFIG; a job with parameter servers hands out its data otherwise."""
    if "tensorflow" not in sys.modules or "TF_CONFIG" not in environment:
        return None
    try:
        config = json.loads(environment["TF_CONFIG"])
        cluster, task = config["cluster"], config["task"]
        # The first of them counts as rank 0, as in tf.distribute.
        first = len(cluster.get("chief", ())) + len(cluster.get("master", ()))
        size = first + len(cluster.get("worker", ()))
        rank = int(task["index"]) + (first if task["type"] == "worker" else 0)
        trains = task["type"] in ("chief", "master", "worker") and "ps" not in cluster
    except (ValueError, TypeError, KeyError, AttributeError):
        # TensorFlow itself reports what is wrong with it.
        return None
    if not trains or size == 1:
        return None
    return _Stated(
        rank, size, "TF_CONFIG", f"make the loader with world=forebay.World(rank={rank}, size={size}, job=)"
    )
