"""The counters of ``forebay pfs stats`` as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from forebay.cli.output import bytes_text, print_pairs, print_table

__all__ = ["print_stats"]

# Maximum number of listed files; --json has all.
_FILES = 10


def print_stats(stats: Mapping[str, Any]) -> None:
    """Print nodes, servers, request sizes and the most read files."""
    late = stats["lateness_us"]
    print_pairs(
        [
            ("model time", f"{stats['model_seconds']:.3f} s, time scale {stats['time_scale']:g}"),
            ("lateness", f"p50 {late['p50']:.0f} us, p99 {late['p99']:.0f} us, max {late['max']:.0f} us"),
            ("emulator", f"{stats['cpu_seconds']:.2f} s of CPU"),
            *((f"fault {name}", value) for name, value in stats["faults"].items() if value),
        ]
    )
    click.echo()
    counted = ("reads", "read", "sequential", "writes", "written")
    print_table(
        ("node", *counted, "metadata", "queue s", "read-ahead KiB", "mount"),
        [
            (
                node["node"],
                *_counters(node),
                node["metadata"],
                f"{node['queue_seconds']:.3f}",
                node["read_ahead_kb"],
                node["mount"],
            )
            for node in stats["nodes"]
        ],
    )
    click.echo()
    print_table(
        ("server", *counted, "seeks", "busy s", "queue s"),
        [
            (
                server["server"],
                *_counters(server),
                server["seeks"],
                f"{server['busy_seconds']:.3f}",
                f"{server['queue_seconds']:.3f}",
            )
            for server in stats["servers"]
            if server["reads"] or server["writes"]
        ],
    )
    if idle := sum(not (server["reads"] or server["writes"]) for server in stats["servers"]):
        click.echo(f"{idle} servers idle")
    if sizes := sorted({int(size) for node in stats["nodes"] for size in node["sizes"]}):
        click.echo()
        print_table(
            ("read size", *(f"node {node['node']}" for node in stats["nodes"])),
            [
                (bytes_text(size), *(node["sizes"].get(str(size), 0) for node in stats["nodes"]))
                for size in sizes
            ],
        )
    if files := sorted(stats["files"], key=lambda one: -one["read_bytes"]):
        click.echo()
        print_table(
            ("file", "reads", "read", "sequential"),
            [
                (one["file"], one["reads"], bytes_text(one["read_bytes"]), _share(one))
                for one in files[:_FILES]
            ],
        )
        if len(files) > _FILES:
            click.echo(f"and {len(files) - _FILES} more files")


def _counters(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        row["reads"],
        bytes_text(row["read_bytes"]),
        _share(row),
        row["writes"],
        bytes_text(row["written_bytes"]),
    )


def _share(row: Mapping[str, Any]) -> str:
    """Format the share of sequential reads."""
    return f"{row['sequential_reads'] / row['reads']:.0%}" if row["reads"] else "-"
