"""Inputs of report tests: a bench result as JSON, an event log, bad texts; all repeatable."""

from __future__ import annotations

import json
import random
import statistics

from forebay_lab.report import data

# Name, seconds exposed per step, ways the requests look, order. The shapes are those of the
# studies: skipping is slowest.
STRATEGIES = (
    ("pylmdb-skipping", "sequential", 0.110, "skipping"),
    ("pylmdb-skipping-noreadahead", "sequential", 0.210, "pages"),
    ("pylmdb-contiguous", "contiguous", 0.031, "contiguous"),
    ("pylmdb-ownlock", "sequential", 0.104, "skipping"),
    ("lmdb", "sequential", 0.098, "skipping"),
    ("lmm-dio-prov-coal", "sequential", 0.022, "coalesced"),
    ("store", "shuffle", 0.012, "contiguous"),
    ("forebay", "group", 0.006, "coalesced"),
)
FILE = "imagenet.lmdb/data.mdb"
SAMPLE_BYTES = 196_608
MIB = 1 << 20
SERVERS = 4
# Phases of a rank, in the order in which they add up to its wall.
PHASES = ("exposed_seconds", "compute_seconds", "communication_seconds", "skew_seconds")
HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;${evil}$title"
# Counts of ranks, which a repetition has as sums.
SUMS = (
    "requested_bytes", "read_bytes", "reads", "mmap_bytes", "storage_bytes", "minor_faults", "major_faults",
    "voluntary_switches", "involuntary_switches", "cpu_seconds",
)  # fmt: skip
SPEC = {
    "name": "lustre-ssd",
    "targets": SERVERS,
    "target_bytes_per_second": 1e8,
    "latency_us": 250.0,
    "seek_us": 0.0,
    "stripe_bytes": MIB,
    "stripe_count": SERVERS,
}


def bench_result(ranks=16, nodes=4, strategies=STRATEGIES, repetitions=5, steps=40, pfs=True, events=1500):
    """Return a whole result; without `pfs` the dataset lies on an ordinary file system."""
    rows = [
        _row(random.Random(name), name, order, exposed, shape, ranks, nodes, repetitions, steps, pfs, events)
        for name, order, exposed, shape in strategies
    ]
    names = [row["name"] for row in rows]
    return {
        "version": data.RESULT_VERSION,
        "forebay": "0.1.0",
        "command": [
            "forebay",
            "bench",
            "/mnt/node 0/imagenet.lmdb",
            "--ranks",
            str(ranks),
            "--nodes",
            str(nodes),
        ],
        "machine": {"cores": 16, "kernel": "6.8.0", "memory_bytes": 64 << 30, "load": 0.4},
        "dataset": {
            "path": "/mnt/node 0/imagenet.lmdb",
            "format": "lmdb",
            "samples": 20_000,
            "bytes": 20_000 * SAMPLE_BYTES,
            "mean_bytes": SAMPLE_BYTES,
        },
        "ranks": ranks,
        "nodes": nodes,
        "batch_size": 8,
        "steps": steps,
        "epochs": 1,
        "repetitions": repetitions,
        "compute_seconds": 0.02,
        "cold": True,
        "launcher": "mpi",
        "pfs": {"spec": SPEC, "time_scale": 18.0, "limit_mib_s": 1500.0} if pfs else None,
        "limit": {"rate_mib_s": 1350.0, "figures": []},
        "warnings": ["the machine has fewer cores than there are ranks: 16 for 20"],
        "rows": rows,
        "verified": [
            {"rows": names[:2], "what": "steps", "equal": True},
            {"rows": names, "what": "epoch", "equal": True},
        ],
    }


def failed_row(name="h5py@sequential", error="ImportError: no h5py"):
    """Return a row of a baseline that died."""
    return {
        "name": name, "strategy": "h5py", "order": "sequential", "status": "failed", "error": error, "repetitions": [],
        "median": {}, "spread": {}, "digest_steps": None, "digest_epoch": None,
    }  # fmt: skip


def hostile(value):
    """The same structure with every text made hostile, but for what the format prescribes."""
    if isinstance(value, dict):
        return {key: one if key == "status" else hostile(one) for key, one in value.items()}
    if isinstance(value, list):
        return [hostile(one) for one in value]
    return f"{value}{HOSTILE}" if isinstance(value, str) else value


def event_log(path, events, header=None):
    spec = {"name": "lustre-hdd", "targets": 2, "target_bytes_per_second": 1e8, "latency_us": 500.0}
    lines = [header or {"forebay_events": 2, "spec": spec, "time_scale": 4.0}, *events]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _row(dice, name, order, exposed, shape, ranks, nodes, repetitions, steps, pfs, events):
    done = [
        _repetition(dice, exposed * dice.uniform(0.98, 1.02), shape, ranks, nodes, steps, pfs, events)
        for _ in range(repetitions)
    ]
    scalars = [
        key for key, value in done[0].items() if isinstance(value, int | float) and key != "missed_deadlines"
    ]
    median = {key: statistics.median(one[key] for one in done) for key in scalars}
    spread = {
        key: (max(one[key] for one in done) - min(one[key] for one in done)) / middle
        for key, middle in median.items()
        if middle
    }
    walls = [one["wall_seconds"] * dice.uniform(0.9, 1.2) for one in done]
    simulated = {
        "status": "ok", "error": None, "median": {"wall_seconds": statistics.median(walls)},
        "range": {"wall_seconds": [min(walls), max(walls)]}, "seeks": 100, "sensitive": False,
        "wall_error": statistics.median(walls) / median["wall_seconds"] - 1,
    }  # fmt: skip
    return {
        "name": f"{name}@{order}", "strategy": name, "order": order, "status": "ok", "error": None,
        "repetitions": done, "median": median, "spread": spread, "digest_steps": "ab12", "digest_epoch": "cd34",
        "shuffle_quality": _quality(order) if shape == "coalesced" else None, "simulated": simulated,
    }  # fmt: skip


def _quality(order):
    grouped = order == "group"
    return {
        "order_entropy": 0.52 if grouped else 0.0,
        "same_group_pairs": 0.031 if grouped else None,
        "full_shuffle_same_group_pairs": 0.0016 if grouped else None,
        "groups": 625 if grouped else None,
        "proven_epochs": 32 if grouped else None,
        "epochs": 1 if grouped else None,
        "within_bound": True if grouped else None,
        "suggested_group": None,
    }


def _repetition(dice, exposed, shape, ranks, nodes, steps, pfs, events):
    own = [_rank(dice, rank, rank * nodes // ranks, exposed, steps, shape) for rank in range(ranks)]
    wall = max(rank["wall_seconds"] for rank in own)
    asked = sum(rank["requested_bytes"] for rank in own)
    found = _events(dice, shape, nodes, wall, events) if pfs else []
    readers = []
    if shape == "coalesced":
        readers = [
            {
                "rank": rank,
                "threads": 1,
                "locate_seconds": wall * 0.01,
                "read_seconds": wall * dice.uniform(0.4, 0.5),
                "gather_seconds": wall * dice.uniform(0.1, 0.15),
                "reader_idle_seconds": wall * dice.uniform(0.3, 0.4),
            }
            for rank in range(0, ranks, ranks // nodes)
        ]
    startup = max(rank["startup_seconds"] for rank in own)
    total = startup + wall
    return {
        "wall_seconds": wall,
        "startup_seconds": startup,
        "total_seconds": total,
        "samples_per_second": ranks * 8 * steps / total,
        "rate_mib_s": asked / MIB / total,
        "accelerator_utilisation": 0.02 * steps / wall,
        "locate_seconds": max((one["locate_seconds"] for one in readers), default=None),
        "locate_and_read_seconds": max(
            (one["locate_seconds"] + one["read_seconds"] for one in readers), default=None
        ),
        "messages_per_step": 0.0 if readers else None,
        "guess_hit_share": 0.9 if readers else None,
        "read_amplification": 1.05 if readers and pfs else None,
        **{key: statistics.fmean(rank[key] for rank in own) for key in PHASES},
        **{key: sum(rank[key] for rank in own) for key in SUMS},
        "ranks": own,
        "readers": readers,
        "pfs": _counters(dice, found, nodes, wall) if pfs else None,
        "by_epoch": [{"epoch": 0, "levels": _levels(asked)}] if shape == "coalesced" else [],
        "events": found,
        "missed_deadlines": False,
    }


def _levels(asked):
    return {"page_cache": asked // 8, "source": asked - asked // 8, "/scratch/me": 0}


def _rank(dice, rank, node, exposed, steps, shape):
    parts = {
        "exposed_seconds": steps * exposed * dice.uniform(0.85, 1.0),
        "compute_seconds": steps * 0.02,
        "communication_seconds": steps * 0.001,
    }
    # All ranks end together: what one did not wait for its data, it waits for others.
    wall = steps * (exposed + 0.021)
    parts["skew_seconds"] = wall - sum(parts.values())
    asked = steps * 8 * SAMPLE_BYTES
    mapped = shape in ("skipping", "pages")
    return {
        "rank": rank, "node": node, "wall_seconds": wall, "startup_seconds": dice.uniform(0.05, 0.3), **parts,
        "requested_bytes": asked, "read_bytes": 0 if mapped else asked, "reads": 0 if mapped else steps * 2,
        "mmap_bytes": 0, "storage_bytes": 0,
        "minor_faults": dice.randrange(900, 1100), "major_faults": dice.randrange(4000, 4100) if mapped else 3,
        "voluntary_switches": dice.randrange(3000, 3300), "involuntary_switches": dice.randrange(50, 90),
        "cpu_seconds": steps * 0.004,
    }  # fmt: skip


def _events(dice, shape, nodes, wall, count):
    whole, found = 4096 * MIB, []
    for at in range(count):
        time, node = wall * at / count, dice.randrange(nodes)
        if shape == "skipping":
            offset = int(whole * at / count) + node * 2 * MIB + dice.randrange(4) * 4096
            length = dice.choice((4096, 16384, 65536, MIB))
        elif shape == "pages":
            offset, length = int(whole * at / count) + node * 2 * MIB, 4096
        elif shape == "contiguous":
            offset, length = int(whole / nodes * (node + at / count)), MIB
        else:
            offset, length = (at * 37 % 128) * 32 * MIB + dice.randrange(8) * 4 * MIB, 4 * MIB
        found.append([time, node, FILE, offset, length, dice.uniform(0.0003, 0.002)])
    return found


def _counters(dice, events, nodes, wall):
    per_node = []
    for node in range(nodes):
        own = [event for event in events if event[1] == node]
        sizes = {}
        for event in own:
            sizes[str(event[4])] = sizes.get(str(event[4]), 0) + 40
        per_node.append(
            {
                "node": node,
                "mount": f"/mnt/node {node}",
                "read_ahead_kb": 1024,
                "reads": 40 * len(own),
                "read_bytes": 40 * sum(event[4] for event in own),
                "writes": 0,
                "written_bytes": 0,
                "metadata": 12,
                "queue_seconds": 0.2,
                "sequential_reads": 20 * len(own),
                "sizes": sizes,
            }
        )
    whole = sum(node["read_bytes"] for node in per_node)
    servers = [
        {
            "server": server,
            "reads": 100,
            "read_bytes": int(whole / SERVERS * dice.uniform(0.85, 1.15)),
            "writes": 0,
            "written_bytes": 0,
            "seeks": dice.randrange(50, 900),
            "sequential_reads": 60,
            "busy_seconds": wall * dice.uniform(0.4, 0.7),
            "queue_seconds": 0.3,
        }
        for server in range(SERVERS)
    ]
    return {
        "model_seconds": wall, "time_scale": 18.0, "lateness_us": {"p50": 20.0, "p99": 90.0, "max": 300.0},
        "lateness_share": 0.01, "missed_deadlines": False, "nodes": per_node, "servers": servers, "files": [], "faults": {},
        "cpu_seconds": 0.4,
    }  # fmt: skip
