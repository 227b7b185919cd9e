"""Read three epochs: ``python job.py FILE TIER ORDER SEED``; each order of two jobs is another."""

from __future__ import annotations

import sys

import forebay

MEMORY = "100MiB"

if __name__ == "__main__":
    file, tier, order, seed = sys.argv[1:]
    options = {
        "order": order,
        "seed": int(seed),
        "node_memory": MEMORY,
        "world": "single",
        "expected_epochs": 3,
    }
    with forebay.Loader(forebay.open(file), 8, tiers=tier, **options) as loader:
        for _ in range(3):
            for _ in loader:
                pass
