"""The figures of docs/results/provenance.md.

    python lab/studies/provenance.py [--tiny] [--save]

What a recipe costs: its bytes, the time and memory to compute all offsets from it, and the time to
make a sidecar of them. Nothing is read: the data sets are the published ones by their sizes. Each
case runs in a new process.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from sections import Row, run_sections

ROOT = Path(__file__).resolve().parents[2]
CASES = {
    "cifar": "CIFAR10-Large as `convert_imageset` writes it: 24-byte keys, 3,083 B, a commit every 1,000",
    "cifar-one-transaction": "the same in one transaction, 8-byte keys",
    "imagenet": "ImageNet-Large: 30-byte keys, 196,630 B, a commit every 1,000",
    "inline": "200 B on the leaves, a commit every 1,000",
    "list": "ImageNet-like sizes from a list, appended, named database",
}


def provenance(tiny: bool) -> list[Row]:
    """Recipe, offsets and sidecar of each case."""
    rows = []
    for case, what in CASES.items():
        command = ["cargo", "bench", "-q", "-p", "forebay-recipe", "--bench", "provenance", "--", case]
        done = subprocess.run(
            command + (["100000"] if tiny else []), cwd=ROOT, capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout)
        row = {"case": case, "name": what, "file_gb": found["file_bytes"] / 1e9}
        row |= {
            key: found[key] for key in ("samples", "recipe_bytes", "list_bytes", "offsets_s", "sidecar_s")
        }
        rows.append(row | {"offsets_peak_kib": found["offsets_peak_bytes"] / 1024})
    return rows


if __name__ == "__main__":
    run_sections(__doc__, "provenance", {"provenance": provenance}, {}, bool)
