"""The fixture ``make``: loaders of the small records."""

from __future__ import annotations

import pytest

import forebay


@pytest.fixture
def make(small_lmdb):
    """Make loaders of the small records that are closed after the test."""
    loaders = []

    def make(**arguments):
        loaders.append(forebay.Loader(small_lmdb, **{"batch_size": 8, "node_memory": "16MiB", **arguments}))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.close()
