"""Work of ranks on datasets of any format: return all they get, to compare with an oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import forebay
from support.ranks import nodes
from support.ranks.pool import Pool

MEMORY = "32MiB"

Sample = dict[str, np.ndarray]


def deliver(
    path: str,
    opening: Mapping[str, Any],
    options: Mapping[str, Any],
    world: Mapping[str, Any],
    pipe: Any,
) -> list[tuple[int, Sample]]:
    """Go through an epoch and return id and fields of every sample."""
    dataset = forebay.open(path, **opening)
    found = []
    with forebay.Loader(
        dataset, world=forebay.World(**nodes.with_comm(dict(world))), node_memory=MEMORY, **options
    ) as loader:
        for batch in loader:
            for slot, number in enumerate(batch.indices):
                found.append((int(number), {name: np.array(batch[name][slot]) for name in batch}))
    return found


def everything(
    pool: Pool, path: str, opening: Mapping[str, Any], ranks: int, order: str
) -> dict[int, Sample]:
    """Return the fields of every sample as that many ranks get them, each exactly once."""
    options = {"batch_size": 7, "order": order, "last_batch": "partial", "expected_epochs": 1}
    shares = pool.run(ranks, deliver, path=path, opening=opening, options=options)
    samples = {}
    for number, sample in (one for share in shares for one in share):
        assert number not in samples, f"sample {number} came twice"
        samples[number] = sample
    return samples


def same(found: np.ndarray, expected: Any, dtype: Any = None) -> None:
    """Compare values, shape and type."""
    expected = np.asarray(expected, dtype)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected, strict=True)
