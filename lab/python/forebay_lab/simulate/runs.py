"""Simulated runs in the form of repetitions of the bench (docs/metrics.md)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

from forebay_lab import _native
from forebay_lab.simulate.places import Places

__all__ = ["MOST_RANKS", "Simulated", "run"]

MIB = 1 << 20
MOST_RANKS = 64
"""Ranks that a result shows one by one, evenly chosen."""

MOST_STEPS = 512
"""Steps whose ends a result has."""

_QUANTILES = (0, 5, 25, 50, 75, 95, 100)
_NANO = 1e-9

Simulated = dict[str, Any]


def run(job: dict[str, Any], places: Places, seeds: list[int], tiers: Sequence[str] = ()) -> list[Simulated]:
    """Simulate a job once for each seed, and return a repetition for each.

    Parameters
    ----------
    job
        As the native module takes it.
    places
        Where the samples lie.
    seeds
        Of the runs.
    tiers
        Names of the tiers of the job.

    Raises
    ------
    OptionError
        If the job is not valid, or has no model.
    """
    found = json.loads(_native.sim_run(json.dumps(job), places.model, seeds))
    return [
        {
            **_repetition(one, found, job, places.sample_bytes),
            "by_epoch": _by_epoch(one, found, job, (places.sample_bytes, tiers)),
        }
        for one in found["runs"]
    ]


def _repetition(
    one: dict[str, Any], found: dict[str, Any], job: dict[str, Any], sample_bytes: int
) -> Simulated:
    steps, nodes, ends = found["steps"], one["nodes"], one["step_ends"]
    wall, startup = one["wall_ns"] * _NANO, one["startup_ns"] * _NANO
    total = wall + startup
    meetings = steps * found["meeting_ns"] * _NANO
    asked = found["samples"] * sample_bytes
    parts = [_parts(node, meetings) for node in nodes]
    compute = statistics.fmean(part["compute_seconds"] for part in parts)
    first = compute / steps
    return {
        "wall_seconds": wall,
        "startup_seconds": startup,
        "total_seconds": total,
        "samples_per_second": found["samples"] / total if total else None,
        "rate_mib_s": asked / MIB / total if total else None,
        # As DLIO has it: without the compute of the first step.
        "accelerator_utilisation": (compute - first) / (wall - first) if steps > 1 and wall > first else None,
        **{key: statistics.fmean(part[key] for part in parts) for key in parts[0]},
        "requested_bytes": asked,
        "reads": sum(node["reads"] for node in nodes),
        "read_bytes": sum(node["read_bytes"] for node in nodes),
        "mmap_bytes": 0,
        "storage_bytes": sum(node["traffic"]["read_bytes"] for node in nodes),
        **dict.fromkeys(_NOT_MODELLED),
        "seed": one["seed"],
        "steps": steps,
        "window": found["window"],
        "step_seconds": [ends[step] * _NANO for step in _chosen(len(ends), MOST_STEPS)],
        "ranks": [_of_rank(rank, wall, one, parts, job) for rank in _chosen(job["ranks"])],
        "quantiles": {key: _quantiles([part[key] for part in parts]) for key in parts[0]},
        "readers": [],
        **{key: sum(node[key] for node in nodes) for key in _OF_LEVELS},
        "pfs": {
            "model_seconds": total,
            "time_scale": 1.0,
            "nodes": [{"node": number, **nodes[number]["traffic"]} for number in _chosen(len(nodes))],
            "reads": sum(node["traffic"]["reads"] for node in nodes),
            "read_bytes": sum(node["traffic"]["read_bytes"] for node in nodes),
            "servers": [
                {
                    "server": number,
                    "reads": server["pieces"],
                    "read_bytes": server["bytes"],
                    "seeks": server["seeks"],
                    "busy_seconds": server["busy_ns"] * _NANO,
                    "queue_seconds": server["queue_ns"] * _NANO,
                }
                for number, server in enumerate(one["servers"])
            ],
        },
    }


def _by_epoch(
    one: dict[str, Any], found: dict[str, Any], job: dict[str, Any], of: tuple[int, Sequence[str]]
) -> list[dict[str, Any]]:
    """Return the epochs of a run, as a repetition of the bench has them."""
    (sample_bytes, tiers), begin, epochs = of, 0, []
    for number, epoch in enumerate(one["epochs"]):
        steps = min(found["steps_per_epoch"], found["steps"] - number * found["steps_per_epoch"])
        samples = steps * job["batch_size"] * job["ranks"]
        epochs.append(
            {
                "epoch": number,
                "seconds": (epoch["end"] - begin) * _NANO,
                "exposed_seconds": epoch["wait_ns"] / job["nodes"] * _NANO,
                "samples": samples,
                "requested_bytes": samples * sample_bytes,
                "levels": _levels(epoch["levels"], tiers, job),
                "pfs": {**epoch["traffic"], "metadata": 0},
            }
        )
        begin = epoch["end"]
    return epochs


def _levels(levels: dict[str, Any], tiers: Sequence[str], job: dict[str, Any]) -> dict[str, int] | None:
    """Return the bytes of each level; None for ranks that walk through a mapping."""
    found = {"source": levels["source"]}
    of_tiers = [*levels["tiers"], *[0] * len(tiers)]
    found |= dict(zip(tiers, of_tiers, strict=False))
    found |= {key: levels[key] for key in ("share", "peers") if job["store"] is not None}
    return found if any(found.values()) else None


_OF_LEVELS = ("copied_bytes", "skipped_bytes", "loaded_bytes")
"""What a repetition of a simulation has besides those of the bench: sums over the nodes."""

_NOT_MODELLED = (
    "minor_faults", "major_faults", "voluntary_switches", "involuntary_switches", "cpu_seconds",
    "locate_seconds", "locate_and_read_seconds", "messages_per_step", "guess_hit_share", "read_amplification",
)  # fmt: skip


def _parts(node: dict[str, Any], meetings: float) -> dict[str, float]:
    return {
        "exposed_seconds": node["wait_ns"] * _NANO,
        "compute_seconds": node["compute_ns"] * _NANO,
        "communication_seconds": meetings,
        "skew_seconds": max(0.0, node["skew_ns"] * _NANO - meetings),
    }


def _of_rank(
    rank: int, wall: float, one: dict[str, Any], parts: list[dict[str, float]], job: dict[str, Any]
) -> dict[str, Any]:
    # Node n has the ranks from n * ranks // nodes on.
    node = ((rank + 1) * job["nodes"] - 1) // job["ranks"]
    startup = one["nodes"][node]["startup_ns"] * _NANO
    return {"rank": rank, "node": node, "wall_seconds": wall, "startup_seconds": startup, **parts[node]}


def _chosen(count: int, most: int = MOST_RANKS) -> list[int]:
    """Return up to ``most`` numbers below a count, evenly chosen."""
    if count <= most:
        return list(range(count))
    return [place * (count - 1) // (most - 1) for place in range(most)]


def _quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {str(share): ordered[round(share / 100 * (len(ordered) - 1))] for share in _QUANTILES}
