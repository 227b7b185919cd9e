"""What ranks do in tests of files that come into the page cache while a loader lives."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import forebay

BELIEVED_S = 1.2
"""Longer than the engine believes what it found in the page cache."""


def epochs(world, pipe, path, options, last):
    """Go through epochs of an npy file of which the first column is the sample's id.

    Returns the ids of each step by epoch, and by epoch since when the page cache is used.
    """
    kind = options.get("order")
    if kind == "given":
        samples = len(np.load(path, mmap_mode="r"))
        order = lambda epoch: np.random.default_rng(epoch).permutation(samples)  # noqa: E731
        options = {**options, "order": order}
    found, since = [], []
    with forebay.Loader(path, world=forebay.World(**world), **options) as loader:
        assert loader.config.reading.io_mode == "planned"
        assert loader.config.reading.mapping == "cold"
        for epoch in range(last):
            steps = []
            for batch in loader:
                (field,) = batch.values()
                assert field[:, 0].tolist() == batch.indices.tolist()
                assert (field == field[:, :1]).all()
                steps.append(batch.indices.tolist())
            found.append(steps)
            since.append(loader.config.now.mapped_from_epoch)
            if epoch == 0:
                # However it was read: all of it is in the page cache from here on.
                Path(path).read_bytes()
                time.sleep(BELIEVED_S)
    return found, since
