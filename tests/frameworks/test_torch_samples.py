"""Tensors of torch as results of functions of samples, in threads and in processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import forebay
from frameworks import tensor_functions


@pytest.mark.parametrize("workers", [{"workers": 2}, {"workers": 1, "worker_kind": "process"}])
def test_tensors_are_stacked_as_arrays_or_listed_as_they_are(small_lmdb, small_records, workers):
    options = {
        "order": "sequential",
        "node_memory": "16MiB",
        "transform": tensor_functions.tensors,
        **workers,
    }
    with forebay.Loader(small_lmdb, 8, **options) as loader:
        batch = next(iter(loader))
    assert (batch["x"].dtype, batch["x"].shape, batch["n"].tolist()) == (np.float32, (8, 300), [3] * 8)
    for row, record in zip(batch["x"], small_records, strict=False):
        assert bytes(row.astype(np.uint8)) == record
    with forebay.Loader(small_lmdb, 8, collate="list", **options) as loader:
        listed = next(iter(loader))
    assert all(isinstance(one, torch.Tensor) for one in listed["x"])
    assert np.array_equal(torch.stack(listed["x"]).numpy(), batch["x"])


@pytest.mark.parametrize("workers", [{"workers": 2}, {"workers": 1, "worker_kind": "process"}])
def test_a_tensor_that_requires_gradients_is_an_error(small_lmdb, workers):
    options = {"node_memory": "16MiB", "transform": tensor_functions.with_gradients, **workers}
    with (
        forebay.Loader(small_lmdb, 8, **options) as loader,
        pytest.raises(forebay.OptionError, match="requires grad"),
    ):
        next(iter(loader))
