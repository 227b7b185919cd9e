"""What came from the tiers, as text: for all programs of the run on this node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay._text import bytes_text

__all__ = ["SOURCE_OPENS", "differences", "lines"]

SOURCE_OPENS: Mapping[str, str] = {
    "unknown": "not copied yet",
    "copying": "while the copy was made",
    "refused": "not copied",
    "changed": "changed since it was copied",
    "stale": "opened for writing before",
    "direct": "with O_DIRECT",
    "level_out": "the tier failed",
    "open_failed": "the copy could not be opened",
    "other_copy": "the copy was another file",
    "number_failed": "too many open files",
    "retired": "the tier daemon was gone",
}
"""Counters of opens that got the source, with what is said of each."""

# Differences and tiers that are listed; --json has all.
_LISTED = 20


def lines(summary: Mapping[str, Any], restarts: int = 0) -> list[str]:
    """Return the summary of a run, whose daemon was started again so often."""
    counters = summary["counters"]
    told = []
    if restarts:
        times = "once" if restarts == 1 else f"{restarts:,} times"
        told.append(f"the tier daemon died and was started again {times}: counts are those since then")
    elif not summary["opens"]:
        told.append(
            f"no program was seen to open a file of {', '.join(summary['sources'])}; static and setuid "
            f"programs, and direct system calls, are not seen"
        )
        if not summary["copied_files"] and not summary["not_copied"]:
            return told
    served = sum(level["bytes"] for level in summary["levels"])
    told += [
        f"{summary['opens_served']:,} of {summary['opens']:,} opens of sources got a copy: "
        f"files of {bytes_text(served)} kept off the source"
    ]
    if counters.get("frozen"):
        told.append(f"  {counters['frozen']:,} of them did not reach the source at all")
    told += [
        f"  tier {level['name']}: {level['opens']:,} opens, {bytes_text(level['bytes'])}; holds "
        f"{bytes_text(level['taken_bytes'])} of {bytes_text(level['quota_bytes'])}"
        + ("" if level["state"] == "open" else f" ({level['state']})")
        for level in summary["levels"]
    ]
    for name, words in SOURCE_OPENS.items():
        if counters.get(name):
            told.append(f"  source: {counters[name]:,} opens, {words}")
    if summary["copied_files"]:
        told.append(
            f"  copied: {summary['copied_files']:,} files, {bytes_text(summary['copied_bytes'])}, of which "
            f"{bytes_text(summary['fetched_bytes'])} were read for the copies alone"
        )
    for reason, files in summary["not_copied"].items():
        if files:
            told.append(f"  not copied: {files:,} files: {reason.replace('_', ' ')}")
    if left := summary["waiting_files"] + summary["copying_files"]:
        told.append(f"  not copied: {left:,} files: the programs ended before")
    if summary["opens"] and not summary["opens_served"]:
        told.append(f"  {_nothing_served(summary)}")
    return told


def _nothing_served(summary: Mapping[str, Any]) -> str:
    largest, files = summary["largest_requested"], summary["requested_files"]
    if largest is None or files != summary["opens"]:
        return (
            "nothing was served: a file that is open is never switched to its copy, which serves "
            "later opens; --stage copies first"
        )
    # No file was opened a second time.
    what = (
        f"1 file of {bytes_text(largest['bytes'])} was"
        if files == 1
        else f"{files:,} files, the largest of {bytes_text(largest['bytes'])}, were"
    )
    return (
        f"{what} opened once, {largest['path']}: nothing was served, as a file that is open is never "
        f"switched to its copy; use --stage, or the Loader"
    )


def differences(summary: Mapping[str, Any]) -> list[str]:
    """Return what ``--check`` found."""
    found = summary["differences"]
    told = [f"{one['path']}: its copy differs at byte {one['offset']:,}" for one in found[:_LISTED]]
    if len(found) > _LISTED:
        told.append(f"and {len(found) - _LISTED} more (--json lists all)")
    return told
