"""Ranks of a SLURM step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from forebay._core import option_error
from forebay._job.rank_info import JOB_VARIABLE, RankInfo, check_rank, number, own_node, single

_FIRST_OF_RANGE = re.compile(r"\[(\d+)[^\]]*\]")
_REPEATED = re.compile(r"^(\d+)(?:\(x(\d+)\))?$")
_MAX_NODES = 1 << 20


def from_slurm(environment: Mapping[str, str]) -> RankInfo | None:
    """Read the environment of a SLURM step; a batch script or login shell has no ranks."""
    if not {"SLURM_PROCID", "SLURM_STEP_ID"} <= environment.keys():
        return None
    where = "SLURM's environment"
    size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    rank, size = number(environment, "SLURM_PROCID"), number(environment, size_name)
    check_rank(where, "SLURM_PROCID", rank, size_name, size)
    if size == 1:
        return single(where)
    node, local_rank = number(environment, "SLURM_NODEID"), number(environment, "SLURM_LOCALID")
    tasks = tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if sum(tasks) != size or node >= len(tasks):
        raise option_error(
            f"{where}: SLURM_STEP_TASKS_PER_NODE={environment.get('SLURM_STEP_TASKS_PER_NODE')!r} "
            f"does not hold {size} tasks with node {node}",
            "pass world=forebay.World(...)",
        )
    local_ranks = next(
        (ranks for ranks in _layouts(environment, node, tasks) if _stands(ranks, local_rank, rank)), None
    )
    if local_ranks is None:
        raise option_error(
            f"{where}: task {rank} at place {local_rank} of node {node} fits neither a block nor a cyclic distribution "
            f"of {tasks}",
            "pass world=forebay.World(..., local_ranks=) with the global ranks of the node",
        )
    cluster = environment.get("SLURM_CLUSTER_NAME", "")
    job = f"slurm-{cluster}-{environment.get('SLURM_JOB_ID', '')}-{environment['SLURM_STEP_ID']}"
    return RankInfo(
        rank=rank,
        size=size,
        local_ranks=local_ranks,
        node=own_node(environment),
        job=environment.get(JOB_VARIABLE) or job,
        source=where,
        launcher="SLURM_PROCID",
        address=first_host(environment.get("SLURM_STEP_NODELIST", "")),
    )


def _layouts(environment: Mapping[str, str], node: int, tasks: list[int]) -> Iterator[tuple[int, ...]]:
    """Yield what the ranks of a node may be, the likeliest first."""
    stated = environment.get("SLURM_GTIDS", "").split(",")
    if len(stated) == tasks[node] and all(rank.isascii() and rank.isdigit() for rank in stated):
        yield tuple(map(int, stated))
    layouts = [block_layout(tasks)[node], cyclic_layout(tasks)[node]]
    # The first and the last rank of a job fit both.
    is_cyclic = environment.get("SLURM_DISTRIBUTION", "").startswith("cyclic")
    yield from reversed(layouts) if is_cyclic else layouts


def _stands(ranks: tuple[int, ...], local_rank: int, rank: int) -> bool:
    return local_rank < len(ranks) and ranks[local_rank] == rank


def tasks_per_node(text: str) -> list[int]:
    """Read SLURM's repeated counts: ``"4(x2),3"`` is [4, 4, 3]."""
    tasks: list[int] = []
    for part in filter(None, text.split(",")):
        match = _REPEATED.match(part)
        if match is None:
            raise option_error(f"SLURM_STEP_TASKS_PER_NODE: expected counts such as 4(x2),3; found {text!r}")
        repeated = int(match.group(2) or 1)
        if len(tasks) + repeated > _MAX_NODES:
            raise option_error(
                f"SLURM_STEP_TASKS_PER_NODE: expected at most {_MAX_NODES} nodes; found {text!r}",
                "pass world=forebay.World(...)",
            )
        tasks += [int(match.group(1))] * repeated
    return tasks


def first_host(hosts: str) -> str | None:
    """Return the first host of SLURM's list, that of rank 0: gpu07 of ``"gpu[07-09,12],login"``."""
    depth = 0
    for place, letter in enumerate(hosts):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            hosts = hosts[:place]
            break
    first = _FIRST_OF_RANGE.sub(r"\1", hosts)
    return first if first and not set(first) & set("[],") else None


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
