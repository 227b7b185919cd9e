"""Mixtures in the adapters of frameworks: the same batches as those of a loader."""

from __future__ import annotations

import importlib
import itertools
import os

import numpy as np
import pytest

import forebay

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

STEPS = 7


@pytest.fixture
def mixture(tmp_path):
    """Windows of two sources, of which a seventh step is in the second pass of one."""
    sources = {}
    for first, (name, windows) in enumerate((("web", 100), ("code", 12))):
        path = tmp_path / f"{name}.bin"
        np.arange(first * 10_000, first * 10_000 + 4 * windows, dtype="<i4").tofile(path)
        sources[name] = forebay.tokens(path, 4, dtype="i4")
    return forebay.mix(sources, weights=[0.7, 0.3], stop="never")


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax", "grain"])
# What a loader says where a framework reads ahead in threads of its own.
@pytest.mark.filterwarnings("ignore:loader .* batch buffers of this rank are still in use")
def test_adapters_deliver_mixtures(mixture, framework):
    pytest.importorskip(framework, reason=f"{framework} could not be had")
    adapter = importlib.import_module(f"forebay.{framework}")
    options = {"order": "shuffle", "seed": 3, "node_memory": "16MiB"}
    with forebay.Loader(mixture, 8, **options, name="expected") as loader:
        expected = [batch["tokens"].tolist() for batch in itertools.islice(loader, STEPS)]
    make = getattr(adapter, "loader", None) or adapter.dataset
    batches = itertools.islice(make(mixture, 8, **options, name=framework), STEPS)
    assert [np.asarray(batch["tokens"]).tolist() for batch in batches] == expected
