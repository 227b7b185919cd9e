"""The table of docs/provenance.md: ``python benches/provenance.py [CASE[=SAMPLES] ...]``.

What a recipe costs: its bytes, the time and memory to compute all offsets from it, and the time to
make a sidecar of them. Nothing is read: the data sets are the published ones by their sizes. Every
case is measured in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CASES = {
    "cifar": "CIFAR10-Large as `convert_imageset` writes it: 24-byte keys, 3,083 B, a commit every 1,000",
    "cifar-one-transaction": "the same in one transaction, 8-byte keys",
    "imagenet": "ImageNet-Large: 30-byte keys, 196,630 B, a commit every 1,000",
    "inline": "200 B on the leaves, a commit every 1,000",
    "list": "ImageNet-like sizes from a list, appended, named database",
}


def main(arguments: list[str]) -> int:
    print("| data set | samples | file | recipe | list | all offsets | memory | sidecar of them |")
    print("|---|---|---|---|---|---|---|---|")
    for argument in arguments or CASES:
        case, _, samples = argument.partition("=")
        command = ["cargo", "bench", "-q", "-p", "forebay-recipe", "--bench", "provenance", "--", case]
        done = subprocess.run(
            command + ([samples] if samples else []), cwd=ROOT, capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout)
        print(
            f"| {CASES[case]} | {found['samples']:,} | {found['file_bytes'] / 1e9:.1f} GB | {found['recipe_bytes']} B | "
            f"{found['list_bytes']:,} B | {found['offsets_s']:.2f} s | {found['offsets_peak_bytes'] / 1024:.0f} KiB | "
            f"{found['sidecar_s']:.2f} s |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
