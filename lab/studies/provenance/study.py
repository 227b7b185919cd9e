"""The one section: what each case costs."""

from __future__ import annotations

import json
import subprocess

from studies.harness.sections import ROOT, Row, Scope, Study

CASES = {
    "cifar": "CIFAR10-Large as `convert_imageset` writes it: 24-byte keys, 3,083 B, a commit every 1,000",
    "cifar-one-transaction": "the same in one transaction, 8-byte keys",
    "imagenet": "ImageNet-Large: 30-byte keys, 196,630 B, a commit every 1,000",
    "inline": "200 B on the leaves, a commit every 1,000",
    "list": "ImageNet-like sizes from a list, appended, named database",
}


def provenance(scope: Scope) -> list[Row]:
    """Recipe, offsets and sidecar of each case."""
    rows = []
    for case, what in CASES.items():
        command = ["cargo", "bench", "-q", "-p", "forebay-recipe", "--bench", "provenance", "--", case]
        done = subprocess.run(
            command + (["100000"] if scope.tiny else []), cwd=ROOT, capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout)
        row = {"case": case, "name": what, "file_gb": found["file_bytes"] / 1e9}
        row |= {
            key: found[key] for key in ("samples", "recipe_bytes", "list_bytes", "offsets_s", "sidecar_s")
        }
        rows.append(row | {"offsets_peak_kib": found["offsets_peak_bytes"] / 1024})
    return rows


STUDY = Study(sections={"provenance": provenance})
