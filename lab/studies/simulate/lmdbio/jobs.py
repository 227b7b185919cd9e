"""Jobs of the paper, simulated by ``forebay simulate``, and rows of their results.

Datasets are scaled down to the samples that the paper reads of them; the steps that are simulated
are like all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from studies.harness.sections import MIB, Result, Row, Scope, run

__all__ = ["BEBOP", "BLUES", "ONE_ROOT", "points", "simulated", "strategy_of"]

BEBOP = ("--pfs", "bebop", "--ranks-per-node", "36")
BLUES = ("--pfs", "blues", "--ranks-per-node", "16")

ONE_ROOT = ":readers=1"
"""One root on each node, as in the paper (section 5.1.1); the engine would take two."""

_SHARES = {"cifar10-large": 512 * 18_432 / 50_000_000, "imagenet-large": 128 * 18_432 / 6_000_000}
"""Samples that the paper reads on Bebop, of those of the workload."""
_TINY_SHARES = {"cifar10-large": 0.002, "imagenet-large": 0.001}
_TINY = ("--ranks", "4,8", "--ranks-per-node", "2", "--steps", "2")
_TINY_BATCH = 512


def simulated(
    scope: Scope,
    workload: str,
    ranks: Sequence[int],
    strategies: Sequence[str],
    *words: str,
    batch: int | None = None,
    each: int = 2,
) -> Result:
    """Simulate strategies at several numbers of ranks.

    Parameters
    ----------
    scope
        A tiny run has 4 and 8 ranks and two steps of a small batch, on few samples.
    workload, ranks, strategies, words
        Of ``forebay simulate``.
    batch
        Samples of all ranks in a step; absent: `each` says.
    each
        Samples of a rank in a step.
    """
    share = scope.pick(_SHARES, _TINY_SHARES)[workload]
    whole = ("--global-batch", str(scope.pick(batch, _TINY_BATCH)))
    return run(
        "simulate", "--workload", workload, "--scale", f"{share:.8f}", *words,
        *(whole if batch else ("--batch-size", str(each))), "--ranks", ",".join(map(str, ranks)),
        "--order", "sequential", "--strategies", ",".join(strategies),
        "--seeds", str(scope.repetitions), *scope.pick((), _TINY),
    )  # fmt: skip


def points(result: Result) -> Iterator[tuple[int, dict[str, Row]]]:
    """Yield each number of ranks of a result, and a row for each strategy that ran."""
    for point in result["points"]:
        done = [row for row in point["rows"] if row["status"] == "ok"]
        yield point["ranks"], {strategy_of(row): _row(row, point) for row in done}


def strategy_of(row: Result) -> str:
    """Return the strategy of a row, without its order and parameters."""
    name: str = row["name"]
    return name.partition("@")[0].partition(":")[0]


def _row(row: Result, point: Result) -> Row:
    middle, steps = row["median"], row["steps"]
    wall, (least, most) = middle["wall_seconds"], row["range"]["wall_seconds"]
    return {
        "name": strategy_of(row),
        "ranks": point["ranks"],
        "step_ms": 1e3 * wall / steps,
        "step_ms_low": 1e3 * least / steps,
        "step_ms_high": 1e3 * most / steps,
        "read_ms": 1e3 * middle["exposed_seconds"] / steps,
        "skew_ms": 1e3 * middle["skew_seconds"] / steps,
        "compute_ms": 1e3 * (middle["compute_seconds"] + middle["communication_seconds"]) / steps,
        "read_share": middle["exposed_seconds"] / wall,
        "skew_share": middle["skew_seconds"] / wall,
        "startup_s": middle["startup_seconds"],
        "amplification": middle["storage_bytes"] / middle["requested_bytes"],
        "seeks_per_step": row["seeks"] / steps,
        "mib_per_rank": middle["storage_bytes"] / MIB / point["ranks"],
    }
