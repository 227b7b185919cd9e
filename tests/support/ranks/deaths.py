"""A rank that dies while all iterate, and what the others are told."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import support
from support.ranks import work
from support.ranks.pool import Killed, Pool, Raised


def assert_told_on_all_nodes(
    pool: Pool, path: Path, options: Mapping[str, Any], nodes: Sequence[int], victim: int
) -> None:
    """Kill a rank in the middle of an epoch: all others name it, and keep no shared memory."""
    ranks = pool.begin(len(nodes), work.walk, nodes=nodes, path=str(path), options=options)
    for rank in ranks:
        assert rank.hear() == "made"
        assert rank.hear() == "walking"
    ranks[victim].kill()
    for rank, outcome in enumerate(pool.outcomes(ranks, support.TOLD_WITHIN_S)):
        if rank == victim:
            assert outcome == Killed(-signal.SIGKILL)
        else:
            assert not isinstance(outcome, Raised | Killed), getattr(outcome, "trace", outcome)
            assert f"rank {victim} " in outcome["message"]
            assert outcome["memory"] == []
